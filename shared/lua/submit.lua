-- Make jobs, and put each in its lane, or straight into the hands of a worker that has slots to spare.
-- KEYS: base.  ARGV: msgpack of an array of jobs, a job being
--       {id, tenant, pool, lane, deadline in us from now (0: none), model, endpoint, body, stream, watchers,
--       metadata, ttl in ms, max attempts}, the latter as they stand in its hash; deepest queue; nonce
--       seed (12 characters; 4 are added for each job).
-- Returns a flat array 'ok' | 'exists' | 'full', jobs waiting in the lane (0: it need not wait), ...
-- Invariant: a job is queued if and only if one undelivered entry carries its id. No job overtakes one
--       that waits.
local start_us, deepest, seed = now_us(), tonumber(ARGV[2]), ARGV[3]
local LARGE = 65536 -- a longer request waits to be fetched: channels have little room
local verdicts, depths, rings, pools, waits, listens, hands = {}, {}, {}, {}, {}, {}, {}

-- A worker that is there and has a slot to spare, and its lease in ms.
local function spare_worker(pool)
  local offers = key('offers', pool)
  while true do
    local best = redis.call('ZREVRANGE', offers, 0, 0, 'WITHSCORES')
    if not best[1] or tonumber(best[2]) < 1 then return nil end
    local worker, lease_ms = string.match(best[1], '^(%S+) (%d+)$')
    if listens[worker] == nil then
      listens[worker] = redis.call('PUBSUB', 'NUMSUB', CHANNEL.control .. worker)[2] > 0
    end
    if listens[worker] then
      redis.call('ZINCRBY', offers, -1, best[1])
      return worker, lease_ms
    end
    redis.call('ZREM', offers, best[1])
  end
end

-- Hand the job of lane `name` over whose entry is the only one that nobody was given yet. False if it
-- has to wait.
local function hand_over(now, id, pool, name, entry, job, fields)
  if waits[pool] or #job.body > LARGE then return false end
  local worker, lease_ms = spare_worker(pool)
  if not worker then return false end
  local hand = hands[worker] or {CONTROL.jobs, int(start_us), epoch_of(worker)}
  hands[worker] = hand
  local entries = read(name, worker, 1)
  while entries[1] and entries[1][1] ~= entry do -- one whose job does not wait, so it is none
    local stray, waiter = open(name, entries[1])
    if stray then hand[#hand + 1] = lease(stray, waiter, worker, lease_ms, next_nonce(seed), now, {}) end
    entries = read(name, worker, 1)
  end
  if not entries[1] then return false end
  hand[#hand + 1] = lease(id, job, worker, lease_ms, next_nonce(seed), now, fields)
  return true
end

local function submit(now, id, tenant, pool, lane, deadline, model, endpoint, body, stream, watchers, metadata,
                      ttl_ms, max_attempts)
  local name, depth, is_new = pool .. ':' .. lane, 0, false
  if waits[pool] == nil then
    local names = waiting_keys(pool)
    -- Where nothing waits, as mostly, one question instead of two.
    is_new = redis.call('EXISTS', key('job', id), unpack(names)) == 0
    waits[pool] = not is_new and redis.call('EXISTS', unpack(names)) > 0
  end
  if waits[pool] then
    depth = depths[name] or redis.call('ZCARD', waiting_key(name))
    depths[name] = depth
  end
  if not is_new and redis.call('EXISTS', key('job', id)) == 1 then return 'exists', depth end
  if depth >= deepest then return 'full', depth end
  local created_us = int(now)
  local entry = redis.call('XADD', queue_key(name), '*', 'job', id)
  local fields = {'model', model, 'endpoint', endpoint, 'body', body, 'stream', stream, 'watchers', watchers,
                  'metadata', metadata, 'ttl_ms', ttl_ms, 'max_attempts', max_attempts, 'pool', pool,
                  'lane', lane, 'tenant', tenant, 'queue', name, 'entry', entry, 'created_us', created_us}
  if deadline > 0 then
    fields[#fields + 1] = 'deadline_us'
    fields[#fields + 1] = int(now + deadline)
    later('ZADD', base .. WORD.deadlines, int(now + deadline), id)
  end
  later('ZADD', key('jobs', tenant), created_us, id)
  local job = {attempts = 0, created_us = created_us, stream = stream, endpoint = endpoint, body = body,
               watchers = watchers, watched = ''}
  if hand_over(now, id, pool, name, entry, job, fields) then return 'ok', 0 end
  redis.call('HSET', key('job', id), 'state', 'queued', 'attempts', 0, unpack(fields))
  later('ZADD', waiting_key(name), created_us, id)
  depths[name] = depth + 1
  pools[pool], waits[pool] = true, true
  rings[pool] = (rings[pool] or 0) + 1
  return 'ok', depth + 1
end

for n, job in ipairs(cmsgpack.unpack(ARGV[1])) do
  -- A microsecond apart: jobs of one call keep their order and have positions of their own.
  verdicts[2 * n - 1], verdicts[2 * n] = submit(start_us + n - 1, unpack(job))
end
write_down()
for pool in pairs(pools) do redis.call('SADD', base .. WORD.pools, pool) end
for pool, times in pairs(rings) do ring(pool, times) end
for worker, hand in pairs(hands) do redis.call('PUBLISH', CHANNEL.control .. worker, cmsgpack.pack(hand)) end
return verdicts
