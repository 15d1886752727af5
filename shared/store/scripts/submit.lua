-- Make jobs, have each wait in its tenant's line, and tell idle workers.
-- ARGV: jobs, max_depth, lift, max_waiting, room (4)[, batch, epoch]
--       as `Queue.submit` has them, ShareRules and Quotas; jobs: msgpack array of what `pack_job` makes of each (queue.py). A body of
--       so many bytes lies in a key of its own already, which expires unless the job is made. epoch: see fence_batch.lua.
-- Reply: flat status, value of each job, as `_refusal` reads them (queue.py): 'ok' | 'exists' | 'full' | 'locked' | 'gone', jobs waiting
--       in the lane; 'lost'; 'waiting' | 'quota' | 'memory', how much; 'joined' | 'reused', id of the key's job; nothing if the batch
--       has another owner
-- Invariant: a repeated call makes nothing twice. Of a conversation one response is made at a time, of the items that it has.
if ARGV[10] and redis.call('GET', key('batch_epoch', ARGV[9])) ~= ARGV[10] then return {} end
local jobs, start_us, max_depth, lift = cmsgpack.unpack(ARGV[1]), now_us(), tonumber(ARGV[2]), tonumber(ARGV[3])
local max_waiting, room = quota(ARGV[4]), room_of(unpack(ARGV, 5, 8))
local replies, made, counts, names = {}, {}, {}, {}
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
  local is_large, counted_before = type(body) == 'number', 0
  local bytes = cost(is_large and body or #body)
  local kept = RECORD_BYTES + cost(#request + #(prefixes or '') + (turn and #turn[3] or 0)) + bytes
  local member = is_large and expiring_member('body:' .. id, bytes, job.tenant) -- store_body.lua
  if is_large and has_body(id, body) and redis.call('ZSCORE', base .. 'expiring', member) then counted_before = bytes end
  local what, number = too_much(job.tenant, kept - counted_before, room)
  if what then return what, number end
  if is_large and counted_before == 0 then return 'lost', 0 end
  if is_large then redis.call('ZREM', base .. 'expiring', member) end
  keep(job.tenant, kept - counted_before)
  if turn then begin_turn(id, turn) end
  made[id] = true
  if idempotency_key then redis.call('SET', idempotency_key, cmsgpack.pack({id, body_hash}), 'PX', kept_ms) end
  local fields = {'state', 'queued', 'request', request, 'created_us', job.created_us, 'entry', enter_queue(id, job.pool),
                  'kept', int(kept)}
  local function set(field, value)
    if value and value ~= '' then fields[#fields + 1], fields[#fields + 2] = field, value end
  end
  if is_large then
    set('body_bytes', int(body))
    redis.call('PERSIST', key('body', id))
  else
    fields[#fields + 1], fields[#fields + 2] = 'body', body
  end
  set('watchers', gateway)
  set('origin', origin)
  set('weight', weight)
  set('prefixes', prefixes)
  set('notify', notify)
  set('idempotency', idempotency_name)
  if deadline > 0 then
    set('deadline_us', int(now + deadline))
    defer('ZADD', base .. 'deadlines', int(now + deadline), id)
  end
  redis.call('HSET', names[n], unpack(fields))
  defer('ZADD', key('jobs', job.tenant), job.created_us, id)
  if max_waiting < math.huge then count(line, 1) end
  enter_line(id, job, lift)
  if job.prefixes == '' or not wake_warm(job.pool, job.prefixes) then wake_for(job.pool, job.lane) end
  return 'ok', count(waiting, 1)
end

for n, job in ipairs(jobs) do
  replies[2 * n - 1], replies[2 * n] = submit(n, unpack(job))
end
return replies
