-- Make jobs, have each wait in its tenant's line, and tell idle workers.
-- ARGV: jobs, max_depth, max_jobs, max_kept_bytes, lift, max_waiting[, batch, epoch]
--       jobs: msgpack array, a job being {id, request (record.py), body or its bytes, deadline in us from now (0: none), gateway that
--       waits for the answer or '', and with an idempotency key: its name, the body's hash, time in ms for which it is kept (else false,
--       false, false); origin (job.py) or false; of a response in a conversation its turn, else false: {conversation, version that was
--       read, msgpack of its input (flat id, JSON, ...), bytes of the body before the input, ttl_ms of the conversation}; weight of its
--       tenant, if it is not 1, or false; hashes of its prompt's prefixes, or false; the webhook endpoints that get its end}
--       A body of so many bytes lies in a key of its own already, which expires unless the job is made.
--       max_depth: jobs that may wait in a lane; max_jobs, max_kept_bytes: that one tenant may have here, 0: no limit; lift: see
--       ShareRules; max_waiting: its jobs that may wait in a lane, 0: no limit; batch, epoch: whose lines the jobs are, and that of
--       its owner (fence_batch.lua).
-- Reply: flat 'ok' | 'exists' | 'full' | 'locked' | 'gone' (the conversation has changed since it was read, or is not there), jobs
--       waiting in the lane, ...; 'lost' (the body is not there); or 'waiting' | 'jobs' | 'bytes' (the tenant has too much), how
--       much; or 'joined' | 'reused' (the key belongs to the same or to another body), id of the key's job, ...; nothing if the batch
--       has another owner
-- Invariant: a repeated call makes nothing twice. Of a conversation one response is made at a time, of the items that it has.
if ARGV[8] and redis.call('GET', key('batch_epoch', ARGV[7])) ~= ARGV[8] then return {} end
local jobs, start_us, max_depth, lift = cmsgpack.unpack(ARGV[1]), now_us(), tonumber(ARGV[2]), tonumber(ARGV[5])
local max_jobs, max_kept_bytes, max_waiting = quota(ARGV[3]), quota(ARGV[4]), quota(ARGV[6])
local replies, made, counts, kept = {}, {}, {}, {}
local names = {}
for n, job in ipairs(jobs) do names[n] = key('job', job[1]) end
local are_new = redis.call('EXISTS', unpack(names)) == 0

-- Members of a sorted set and those that this call adds, as one more is added with `more`.
local function count(set, more)
  counts[set] = (counts[set] or redis.call('ZCARD', set)) + (more or 0)
  return counts[set]
end

-- Room that idle workers have for jobs which wait already or come now.
local function idle_room(pool)
  local room = 0
  for _, idle in ipairs(idle_workers(pool)) do
    for _, each in ipairs(idle) do room = room + each[2] end
  end
  return room
end

-- What is too much of a tenant, and how much there is; nil if one more job with so many bytes may be kept.
local function too_much(tenant, bytes)
  if max_jobs < math.huge and count(key('jobs', tenant)) >= max_jobs then return 'jobs', count(key('jobs', tenant)) end
  if max_kept_bytes == math.huge then return nil end
  kept[tenant] = kept[tenant] or kept_bytes(tenant)
  if kept[tenant] + bytes > max_kept_bytes then return 'bytes', kept[tenant] end
  kept[tenant] = kept[tenant] + bytes
end

local function submit(n, id, request, body, deadline, gateway, idempotency_name, body_hash, kept_ms, origin, turn, weight, prefixes,
                      notify)
  local idempotency_key = idempotency_name and key('idempotency', idempotency_name)
  if idempotency_key then
    local status, other_id = key_user(id, idempotency_key, body_hash, made)
    if status then return status, other_id end
  end
  -- A microsecond apart: jobs of one call keep their order and have positions of their own.
  local now = start_us + n - 1
  local job = setmetatable({created_us = int(now), prefixes = prefixes or ''}, {__index = request_of(request)})
  local name = lane_of(job)
  local waiting, line = key('waiting', name), key('line', name .. ':' .. job.tenant)
  local depth = count(waiting)
  if made[id] or not are_new and redis.call('EXISTS', names[n]) == 1 then return 'exists', depth end
  if depth >= max_depth and depth >= max_depth + idle_room(job.pool) then return 'full', depth end
  if depth > 0 and max_waiting < math.huge and count(line) >= max_waiting then return 'waiting', count(line) end
  local problem = turn and turn_problem(turn)
  if problem then return problem, 0 end
  local bytes = tonumber(type(body) == 'number' and body or #body)
  if type(body) == 'number' and not has_body(id, bytes) then return 'lost', 0 end
  local large = bytes > LARGE_BYTES and bytes or 0
  local what, number = too_much(job.tenant, large)
  if what then return what, number end
  if large > 0 then count_kept(job.tenant, id, large) end
  if turn then begin_turn(id, turn) end
  made[id] = true
  if idempotency_key then redis.call('SET', idempotency_key, cmsgpack.pack({id, body_hash}), 'PX', kept_ms) end
  local fields = {'state', 'queued', 'request', request, 'created_us', job.created_us, 'entry', enter_queue(id, job.pool)}
  local function set(field, value)
    if value and value ~= '' then fields[#fields + 1], fields[#fields + 2] = field, value end
  end
  if type(body) == 'number' then
    set('body_bytes', int(bytes))
    redis.call('PERSIST', key('body', id))
  else
    fields[#fields + 1], fields[#fields + 2] = 'body', body
  end
  set('watchers', gateway)
  set('origin', origin)
  set('weight', weight)
  set('prefixes', prefixes)
  set('notify', notify)
  if deadline > 0 then
    set('deadline_us', int(now + deadline))
    defer('ZADD', base .. 'deadlines', int(now + deadline), id)
  end
  redis.call('HSET', names[n], unpack(fields))
  defer('ZADD', key('jobs', job.tenant), job.created_us, id)
  if max_jobs < math.huge then count(key('jobs', job.tenant), 1) end
  if max_waiting < math.huge then count(line, 1) end
  enter_line(id, job, lift)
  if job.prefixes == '' or not wake_warm(job.pool, job.prefixes) then wake_for(job.pool, job.lane) end
  return 'ok', count(waiting, 1)
end

for n, job in ipairs(jobs) do
  replies[2 * n - 1], replies[2 * n] = submit(n, unpack(job))
end
return replies
