-- Make jobs, and queue each in its lane or lease it straight to a worker with advertised slots.
-- KEYS: base
-- ARGV: jobs, max_depth, lease_id_seed, max_jobs, max_kept_bytes, lift, max_waiting[, batch, epoch]
--       jobs: msgpack array, a job being {id, request (record.py), body, deadline in us from now (0: none),
--       gateway that waits for the answer or '', and with an idempotency key: its name, the body's hash, time in
--       ms for which it is kept (else false, false, false); origin (job.py) or false; of a response in a conversation
--       its turn, else false: {conversation, version that was read, msgpack of its input (flat id, JSON, ...), bytes of the
--       body before the input, ttl_ms of the conversation}; weight of its tenant, if it is not 1, or false; hashes of its
--       prompt's prefixes, or false; the webhook endpoints that get its end (webhook_delivery.py)}; max_depth: jobs that may wait
--       in a lane; lease_id_seed: 12 characters, 4 are added for each job; max_jobs, max_kept_bytes: that one tenant may
--       have here, 0: no limit; lift: see ShareRules; max_waiting: its jobs that may wait in a lane, 0: no limit; batch, epoch: whose lines the jobs are, and that of its owner (fence_batch.lua).
-- Reply: flat 'ok' | 'exists' | 'full' | 'locked' | 'gone' (the conversation has changed since it was read, or is not there),
--       jobs waiting in the lane (0: it need not wait), ...; or 'waiting' | 'jobs' | 'bytes' (the tenant has too much), how much; or
--       'joined' | 'reused' (the key belongs to the same or to another body), id of the key's job, ...
-- Invariant: a job is queued if and only if one entry that no worker has carries its id. No job overtakes one that
--       waits. Of a conversation one response is made at a time, of the items that it has.
if ARGV[8] and redis.call('GET', key('batch_epoch', ARGV[8])) ~= ARGV[9] then return {} end
local start_us, max_depth, seed = now_us(), tonumber(ARGV[2]), ARGV[3]
local max_jobs, max_kept_bytes, max_waiting = quota(ARGV[4]), quota(ARGV[5]), quota(ARGV[7])
share_rules.lift = tonumber(ARGV[6])
local MOST_BLOCKS = DEPTHS[#DEPTHS]
local LARGE = 65536 -- a longer request waits to be claimed: channels have little room
local replies, made, depths, wake_ups, someone_waits = {}, {}, {}, {}, {}
local connected, chosen, reserved, kept, woken, own_depths, urgent = {}, {}, {}, {}, {}, {}, {}

local function subtract_reserved(pool, worker)
  redis.call('ZINCRBY', key('advertised', pool), worker.left - worker.slots, worker.member)
end

local function is_there(worker)
  if connected[worker] == nil then connected[worker] = is_connected(worker) end
  return connected[worker]
end

-- The worker of a pool with the most advertised slots: `left` of them until another one may have more.
local function most_advertised(pool)
  local worker, advertised = chosen[pool], key('advertised', pool)
  if worker and worker.left > 0 then return worker end
  if worker then subtract_reserved(pool, worker) end
  chosen[pool] = nil
  while true do
    local best = redis.call('ZREVRANGE', advertised, 0, 1, 'WITHSCORES')
    local slots = tonumber(best[2]) or 0
    if slots < 1 then return nil end
    local id, lease_ms = read_advertiser(best[1])
    if is_there(id) then
      local ahead = math.max(1, slots - math.max(0, tonumber(best[4]) or 0))
      chosen[pool] = {member = best[1], id = id, lease_ms = lease_ms, slots = ahead, left = ahead}
      return chosen[pool]
    end
    redis.call('ZREM', advertised, best[1])
  end
end

-- Of the warm workers that are worth it the one that may hold most of a job's prompt; first of those with a free slot. The
-- others may be full, or have their home shards elsewhere.
local function warm_worker(job)
  local pool, best = job.pool, nil
  if chosen[pool] then subtract_reserved(pool, chosen[pool]) end
  chosen[pool] = nil
  local advertised = key('advertised', pool)
  local most = tonumber(redis.call('ZREVRANGE', advertised, 0, 0, 'WITHSCORES')[2] or '') or 0
  for member, blocks in pairs(warm_of(pool, job.prefixes)) do
    local slots = tonumber(redis.call('ZSCORE', advertised, member) or '')
    if slots and prefers(blocks, slots, most) then
      local found = {member = member, is_free = slots >= 1, worth = blocks + (slots >= 1 and MOST_BLOCKS or 0)}
      if not best or found.worth > best.worth then best = found end
    end
  end
  if not best then return nil end
  best.id, best.lease_ms = read_advertiser(best.member)
  return is_there(best.id) and best or nil
end

-- Reserve a slot for a job. False if it has to wait.
local function reserve(job, has_deadline)
  local must_wait, worker = #job.body > LARGE or someone_waits[job.pool], job.prefixes ~= '' and warm_worker(job)
  if worker and not worker.is_free then
    if has_deadline then worker = nil else must_wait = true end
  end
  if must_wait then
    -- Another one is woken, too: it may take the job after a moment (acquire.lua).
    if worker then woken[worker.id] = job.pool end
    return false
  elseif worker then
    redis.call('ZINCRBY', key('advertised', job.pool), -1, worker.member)
  else
    worker = most_advertised(job.pool)
    if not worker then return false end
    worker.left = worker.left - 1
  end
  local jobs = reserved[worker.id] or {lease_ms = worker.lease_ms}
  reserved[worker.id] = jobs
  jobs[#jobs + 1] = job
  return true
end

-- How many jobs of a tenant wait in a lane.
local function own_depth(name, tenant)
  local set = tenant_key(name, tenant)
  own_depths[set] = own_depths[set] or redis.call('ZCARD', set)
  return own_depths[set]
end

-- Have a job wait in its lane; returns how many do.
local function wait(job, deadline)
  redis.call('HSET', key('job', job.id), 'state', STATE.queued, unpack(job.fields))
  defer('ZADD', waiting_key(job.queue), job.created_us, job.id)
  if job.prefixes ~= '' then wait_with_prefixes(job.id, job.pool, job.created_us, job.prefixes, deadline) end
  if max_waiting < math.huge then
    own_depths[tenant_key(job.queue, job.tenant)] = own_depth(job.queue, job.tenant) + 1
  end
  join_turns(job.queue, job.tenant, job.created_us, job.id)
  if job.lane ~= CLIENT_LANES[#CLIENT_LANES] then urgent[job.pool] = job.id end
  if not wake_ups[job.pool] then redis.call('SADD', base .. WORD.pool_names, job.pool) end
  depths[job.queue], someone_waits[job.pool] = (depths[job.queue] or 0) + 1, true
  wake_ups[job.pool] = (wake_ups[job.pool] or 0) + 1
  return depths[job.queue]
end

-- What is too much of a tenant, and how much there is; nil if one more job with so many bytes may be kept.
local function too_much(tenant, bytes)
  local found = kept[tenant]
  if not found then
    found = {jobs = redis.call('ZCARD', key('jobs', tenant)), bytes = kept_bytes(tenant)}
    kept[tenant] = found
  end
  if found.jobs >= max_jobs then return 'jobs', found.jobs end
  if found.bytes + bytes > max_kept_bytes then return 'bytes', found.bytes end
  found.jobs, found.bytes = found.jobs + 1, found.bytes + bytes
end

local function submit(n, id, request, body, deadline, gateway, idempotency_name, body_hash, kept_ms, origin, turn, weight,
                      prefixes, notify)
  local idempotency_key = idempotency_name and key('idempotency', idempotency_name)
  if idempotency_key then
    local status, other_id = key_user(id, idempotency_key, body_hash, made)
    if status then return status, other_id end
  end
  -- A microsecond apart: jobs of one call keep their order and have positions of their own.
  local now = start_us + n - 1
  local job = setmetatable({id = id, body = body, watchers = gateway, watched = '', origin = origin or '',
                            weight = weight or '', prefixes = prefixes or '', created_us = int(now), attempts = 0, generation = 0}, request_of(request))
  local pool, name, depth, is_new = job.pool, job.pool .. ':' .. job.lane, 0, false
  if someone_waits[pool] == nil then
    local names = lane_keys(pool, waiting_key)
    -- Where nothing waits, as mostly, one question instead of two.
    is_new = redis.call('EXISTS', key('job', id), unpack(names)) == 0
    someone_waits[pool] = not is_new and redis.call('EXISTS', unpack(names)) > 0
  end
  if someone_waits[pool] then
    depth = depths[name] or redis.call('ZCARD', waiting_key(name))
    depths[name] = depth
  end
  if made[id] or not is_new and redis.call('EXISTS', key('job', id)) == 1 then return 'exists', depth end
  if depth >= max_depth then return 'full', depth end
  if depth > 0 and max_waiting < math.huge and own_depth(name, job.tenant) >= max_waiting then
    return 'waiting', own_depth(name, job.tenant)
  end
  local problem = turn and turn_problem(turn)
  if problem then return problem, 0 end
  local large = #body > LARGE_BYTES and #body or 0
  local what, number = too_much(job.tenant, large)
  if what then return what, number end
  if large > 0 then count_kept(job.tenant, id, large) end
  if turn then begin_turn(id, turn) end
  made[id] = true
  if idempotency_key then
    redis.call('SET', idempotency_key, cmsgpack.pack({id, body_hash}), 'PX', kept_ms)
  end
  job.queue, job.entry = name, redis.call('XADD', queue_key(name), '*', 'job', id)
  job.fields = {'request', request, 'body', body, 'created_us', job.created_us, 'entry', job.entry}
  if gateway ~= '' then job.fields[9], job.fields[10] = 'watchers', gateway end
  if origin then
    job.fields[#job.fields + 1] = 'origin'
    job.fields[#job.fields + 1] = origin
  end
  if weight then
    job.fields[#job.fields + 1] = 'weight'
    job.fields[#job.fields + 1] = weight
  end
  if prefixes then
    job.fields[#job.fields + 1] = 'prefixes'
    job.fields[#job.fields + 1] = prefixes
  end
  if notify then
    job.fields[#job.fields + 1] = 'notify'
    job.fields[#job.fields + 1] = notify
  end
  if deadline > 0 then
    job.fields[#job.fields + 1] = 'deadline_us'
    job.fields[#job.fields + 1] = int(now + deadline)
    defer('ZADD', base .. WORD.deadlines, int(now + deadline), id)
  end
  defer('ZADD', key('jobs', job.tenant), job.created_us, id)
  return 'ok', reserve(job, deadline > 0) and 0 or wait(job, deadline > 0)
end

for n, job in ipairs(cmsgpack.unpack(ARGV[1])) do
  replies[2 * n - 1], replies[2 * n] = submit(n, unpack(job))
end
for pool, worker in pairs(chosen) do subtract_reserved(pool, worker) end
give_turns()

-- Lease the jobs that a worker gets; returns its control message.
local function assign(worker, jobs)
  local assignment, entries = {CONTROL.jobs, int(start_us), fence_token_of(worker)}, {}
  for _, job in ipairs(jobs) do
    entries[job.queue] = entries[job.queue] or {}
    table.insert(entries[job.queue], job.entry)
    assignment[#assignment + 1] = lease(job.id, job, worker, jobs.lease_ms, next_lease_id(seed), job.created_us, job.fields)
  end
  for name, ids in pairs(entries) do hand_out(name, worker, ids) end
  return assignment
end

local assignments = {}
for worker, jobs in pairs(reserved) do assignments[worker] = assign(worker, jobs) end
flush_writes()
for pool, times in pairs(wake_ups) do wake_workers(pool, times) end
for worker, pool in pairs(woken) do wake_worker(pool, worker) end
-- Tell a full worker, whose jobs of the worst lane make room for others (next_turn.lua).
for pool, id in pairs(urgent) do
  local worker = redis.call('GET', key('yielding', pool))
  if worker then redis.call(PUBLISH, CHANNEL.control .. worker, cmsgpack.pack({CONTROL.look, id})) end
end
for worker, assignment in pairs(assignments) do
  redis.call(PUBLISH, CHANNEL.control .. worker, cmsgpack.pack(assignment))
end
return replies
