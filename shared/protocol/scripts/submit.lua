-- Make jobs, and put each in its lane, or straight into the hands of a worker that has slots to spare.
-- KEYS: base.  ARGV: msgpack of an array of jobs, a job being {id, request (record.py), body, deadline in
--       us from now (0: none), gateway that waits for the answer or ''}; deepest queue; lease id seed (12
--       characters; 4 are added for each job).
-- Returns a flat array 'ok' | 'exists' | 'full', jobs waiting in the lane (0: it need not wait), ...
-- Invariant: a job is queued if and only if one undelivered entry carries its id. No job overtakes one
--       that waits.
local start_us, deepest, seed = now_us(), tonumber(ARGV[2]), ARGV[3]
local LARGE = 65536 -- a longer request waits to be fetched: channels have little room
local verdicts, made, depths, rings, waits, listens, spares, promises = {}, {}, {}, {}, {}, {}, {}, {}

-- What was taken of an offer is not on offer any more.
local function count_down(pool, spare)
  redis.call('ZINCRBY', key('advertised', pool), spare.left - spare.slots, spare.who)
end

-- The worker of a pool that has most slots to spare: `left` of them until another one may have more.
local function most_spare(pool)
  local spare, offers = spares[pool], key('advertised', pool)
  if spare and spare.left > 0 then return spare end
  if spare then count_down(pool, spare) end
  spares[pool] = nil
  while true do
    local best = redis.call('ZREVRANGE', offers, 0, 1, 'WITHSCORES')
    local slots = tonumber(best[2]) or 0
    if slots < 1 then return nil end
    local worker, lease_ms = string.match(best[1], '^(%S+) (%d+)$')
    if listens[worker] == nil then
      listens[worker] = redis.call('PUBSUB', 'NUMSUB', CHANNEL.control .. worker)[2] > 0
    end
    if listens[worker] then
      local ahead = math.max(1, slots - math.max(0, tonumber(best[4]) or 0))
      spares[pool] = {who = best[1], worker = worker, lease_ms = lease_ms, slots = ahead, left = ahead}
      return spares[pool]
    end
    redis.call('ZREM', offers, best[1])
  end
end

-- Promise a job to a worker. False if it has to wait.
local function promise(job)
  if waits[job.pool] or #job.body > LARGE then return false end
  local spare = most_spare(job.pool)
  if not spare then return false end
  spare.left = spare.left - 1
  local lane = promises[job.queue] or {jobs = {}, counts = {}, lease_ms = {}}
  promises[job.queue] = lane
  lane.jobs[job.entry] = job
  lane.counts[spare.worker] = (lane.counts[spare.worker] or 0) + 1
  lane.lease_ms[spare.worker] = spare.lease_ms
  return true
end

-- Have a job wait in its lane; returns how many do.
local function wait(job)
  redis.call('HSET', key('job', job.id), 'state', 'queued', unpack(job.fields))
  later('ZADD', waiting_key(job.queue), job.created_us, job.id)
  if not rings[job.pool] then redis.call('SADD', base .. WORD.pool_names, job.pool) end
  depths[job.queue], waits[job.pool] = (depths[job.queue] or 0) + 1, true
  rings[job.pool] = (rings[job.pool] or 0) + 1
  return depths[job.queue]
end

local function submit(n, id, request, body, deadline, gateway)
  -- A microsecond apart: jobs of one call keep their order and have positions of their own.
  local now = start_us + n - 1
  local job = setmetatable({n = n, id = id, body = body, watchers = gateway, watched = '',
                            created_us = int(now), attempts = 0, generation = 0}, request_of(request))
  local pool, name, depth, is_new = job.pool, job.pool .. ':' .. job.lane, 0, false
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
  if made[id] or not is_new and redis.call('EXISTS', key('job', id)) == 1 then return 'exists', depth end
  if depth >= deepest then return 'full', depth end
  made[id] = true
  job.queue, job.entry = name, redis.call('XADD', queue_key(name), '*', 'job', id)
  job.fields = {'request', request, 'body', body, 'created_us', job.created_us, 'entry', job.entry}
  if gateway ~= '' then job.fields[9], job.fields[10] = 'watchers', gateway end
  if deadline > 0 then
    job.fields[#job.fields + 1] = 'deadline_us'
    job.fields[#job.fields + 1] = int(now + deadline)
    later('ZADD', base .. WORD.deadlines, int(now + deadline), id)
  end
  later('ZADD', key('jobs', job.tenant), job.created_us, id)
  return 'ok', promise(job) and 0 or wait(job)
end

-- Have a worker read as many entries of a lane as it was promised; what it gets with them goes to `hand`.
local function read_promised(name, lane, worker, hand)
  local left, lease_ms = lane.counts[worker], lane.lease_ms[worker]
  repeat
    local entries = read(name, worker, left)
    for _, entry in ipairs(entries) do
      local id, job = entry[2][2], lane.jobs[entry[1]]
      if job then
        lane.jobs[entry[1]], left = nil, left - 1
        hand[#hand + 1] = lease(id, job, worker, lease_ms, next_lease_id(seed), job.created_us, job.fields)
      else -- one whose job does not wait, so it is none
        id, job = open(name, entry)
        if id then hand[#hand + 1] = lease(id, job, worker, lease_ms, next_lease_id(seed), int(start_us), {}) end
      end
    end
  until left == 0 or #entries == 0
end

for n, job in ipairs(cmsgpack.unpack(ARGV[1])) do
  verdicts[2 * n - 1], verdicts[2 * n] = submit(n, unpack(job))
end
for pool, spare in pairs(spares) do count_down(pool, spare) end
local hands = {}
for name, lane in pairs(promises) do
  for worker in pairs(lane.counts) do
    hands[worker] = hands[worker] or {CONTROL.jobs, int(start_us), fence_token_of(worker)}
    read_promised(name, lane, worker, hands[worker])
  end
  -- The group was moved past what is left: repair.lua will see to it.
  for _, job in pairs(lane.jobs) do verdicts[2 * job.n] = wait(job) end
end
write_down()
for pool, times in pairs(rings) do ring(pool, times) end
for worker, hand in pairs(hands) do
  if #hand > 3 then redis.call('PUBLISH', CHANNEL.control .. worker, cmsgpack.pack(hand)) end
end
return verdicts
