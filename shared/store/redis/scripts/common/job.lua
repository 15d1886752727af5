-- A job: its record, a hash (record.py), and its end.
-- The words of a packed array under these names; nil if it can't be read.
local function unpacked(names, packed)
  local fine, words = pcall(cmsgpack.unpack, packed)
  if not fine or type(words) ~= 'table' or #words < #names then return nil end
  local result = {}
  for i = 1, #names do -- faster than `ipairs`: this is for each job
    if type(words[i]) == 'table' then return nil end
    result[names[i]] = words[i]
  end
  return result
end

local function unpacked_request(packed)
  local request = unpacked(REQUEST, packed)
  if request and IS_CLIENT_LANE[request.lane] and tonumber(request.ttl_ms) and tonumber(request.max_attempts) then
    return request
  end
end

-- What makes a job's request readable in the job itself: `job.pool`. {} if the request can't be read.
local function request_of(packed)
  requests[packed] = requests[packed] or {__index = unpacked_request(packed)}
  return requests[packed]
end

local function unpacked_lease(packed)
  local lease = unpacked(LEASE, packed)
  if lease and tonumber(lease.generation) and tonumber(lease.attempts) and tonumber(lease.lease_ms)
     and tonumber(lease.from_seq) then
    return lease
  end
end

local NO_LEASE = {worker = '', lease_id = '', generation = 0, attempts = 0, lease_ms = '0', started_us = '0', from_seq = 0}
-- In place of a request that can't be read.
local NO_REQUEST = {tenant = '', pool = '', lane = CLIENT_LANES[2], stream = '0', ttl_ms = '86400000', max_attempts = '1'}

local function pack_fields(names, values)
  local words = {}
  for i, name in ipairs(names) do words[i] = values[name] or '' end
  return cmsgpack.pack(words)
end

local function publish(watchers, frame)
  for gateway in string.gmatch(watchers, '%S+') do
    redis.call(PUBLISH, CHANNEL.tokens .. gateway, frame)
  end
end

local function invalidate_fence(worker) redis.call('DEL', key('fence', worker)) end

-- What is read of a job to end it; to lease it; to requeue it; to find it.
local TO_END = {'deadline_us', 'created_us', 'log_lost', 'notify'}
local TO_LEASE = {'deadline_us', 'watchers', 'watched', 'created_us', 'body', 'origin', 'weight', 'prefixes', 'notify'}
local TO_REQUEUE = {'deadline_us', 'watchers', 'watched', 'created_us', 'history', 'restart_seq', 'notify'}
local TO_FIND = {'deadline_us', 'created_us'}
local NUMBER = {deadline_us = true, created_us = true}
local REQUIRED = {created_us = true, body = true}

-- Whether the record that a job was just read from can't be used. `lease`, `entry`: as they are in the record.
local function is_damaged(job, state, lease, entry, fields)
  if not STATE[state] or not job.pool or not job.lease_id or FROM.complete[state] and not lease then return true end
  for i = 1, #fields do
    local value = job[fields[i]]
    if REQUIRED[fields[i]] and value == '' or NUMBER[fields[i]] and value ~= '' and not tonumber(value) then return true end
  end
  if FROM.cancel[state] and not is_entry_id(entry or '') then return true end
  return (job.history or '') ~= '' and not pcall(cjson.decode, job.history)
end

local fail_damaged -- below

-- A job with these fields ('' if it has no such), its request's and its lease's; nil if there is none. One whose record
-- can't be read has failed.
local function load_job(id, fields)
  local values = redis.call('HMGET', key('job', id), 'state', 'request', 'entry', 'queue', 'lease', unpack(fields))
  local state, request, lease = values[1], values[2], values[5]
  if not state and not request then return nil end
  local job = lease and unpacked_lease(lease) or {}
  if not lease then
    for name, value in pairs(NO_LEASE) do job[name] = value end
  end
  setmetatable(job, request_of(request or ''))
  for i = 1, #fields do job[fields[i]] = values[5 + i] or '' end
  if is_damaged(job, state, lease, values[3], fields) then return fail_damaged(id, values) end
  job.state, job.entry, job.queue = state, values[3] or '', values[4] or job.pool .. ':' .. job.lane
  return job
end

-- Whether the lease with this id still holds the job.
local function held(job, lease_id) return FROM.complete[job.state] and job.lease_id == lease_id and lease_id ~= '' end

-- The end of a job: the one way into a terminal state.
local SHORT_LOG = 8 -- segments: about 256 tokens

-- Count a large answer as kept. `job.result_bytes`: of the answer in the record, if it has one.
local function count_answer(id, job, segments, last_bytes)
  local bytes = job.result_bytes or 0
  if segments > SHORT_LOG or last_bytes > LARGE_BYTES then
    bytes = bytes + (redis.call('MEMORY', 'USAGE', key('log', id)) or 0)
  end
  if bytes > LARGE_BYTES then count_kept(job.tenant, id, nil, bytes) end
end

-- `fields` go into the job's record, `segment`, if there is one, into its log; the caller publishes the end
-- and flushes the deferred writes. `tokens`: how many the job generated, nil if its worker did not report it.
local function finish(id, job, event, code, seq, fields, segment, tokens)
  local state, job_key, log_key = TO[event], key('job', id), key('log', id)
  leave_queue(job)
  if code ~= '' then
    fields[#fields + 1] = 'error_code'
    fields[#fields + 1] = code
  end
  redis.call('HSET', job_key, 'state', state, 'finished_us', int(now_us()), unpack(fields))
  if code == 'too_many_attempts' then redis.call('INCR', base .. WORD.given_up) end
  note_end(id, state, job, job.generation > 1 or fields[1] == 'history')
  local last, segments = pack_end(seq, state, tokens), nil
  if segment then
    segments = redis.call('RPUSH', log_key, segment, last)
  else
    segments = redis.call('RPUSH', log_key, last)
  end
  count_answer(id, job, segments, segment and #segment or 0)
  if FROM.acquire[job.state] then leave_waiting(id, job) end
  if job.deadline_us ~= '' then defer('ZREM', base .. WORD.deadlines, id) end
  redis.call('PEXPIRE', job_key, job.ttl_ms)
  redis.call('PEXPIRE', log_key, job.ttl_ms)
  defer('ZADD', base .. WORD.expiring, int(now_us() + job.ttl_ms * 1000), id .. ' ' .. job.tenant)
end

-- Delete the pieces of an answer (store_piece.lua) whose attempt has ended before its job.
local function drop_pieces(id)
  local number = 0
  while redis.call('HDEL', key('job', id), 'result:' .. number) == 1 do number = number + 1 end
end

-- End a job without a result of its worker's.
local function finish_without_result(id, job, event, code, fields)
  drop_pieces(id)
  flush_step_log(id, job)
  local seq = next_seq(id)
  finish(id, job, event, code, seq, fields)
  flush_writes()
  publish(job.watchers, cmsgpack.pack({id, seq, job.generation, KIND.ended, '', ''}))
end

-- A client or the clock ends a job. Its worker, if it has one, gets a hint at once, and learns it for
-- certain by its next refused write.
local function revoke(id, job, event, code)
  finish_without_result(id, job, event, code, {})
  if FROM.complete[job.state] then
    invalidate_fence(job.worker)
    redis.call(PUBLISH, CHANNEL.control .. job.worker, cmsgpack.pack({CONTROL.drop, id}))
  end
end

-- End a job whose record can't be read: it fails, and the queues go on without it. What can't be read is replaced, so that
-- the rest can. `values`: as load_job has read them. Returns the job.
function fail_damaged(id, values)
  local job_key, request, lease = key('job', id), unpacked_request(values[2] or ''), unpacked_lease(values[5] or '')
  local found, job = redis.call('HMGET', job_key, 'created_us', 'watchers', 'notify'), {}
  for _, part in ipairs({request or NO_REQUEST, lease or NO_LEASE}) do
    for name, value in pairs(part) do job[name] = value end
  end
  job.state = STATE[values[1]] or lease and lease.worker ~= '' and STATE.in_progress or STATE.queued
  if not FROM.cancel[job.state] then return job end
  job.entry, job.queue = values[3] or '', values[4] or job.pool .. ':' .. job.lane
  job.created_us = tonumber(found[1]) and found[1] or int(now_us())
  job.watchers, job.notify, job.deadline_us = found[2] or '', found[3] or '', '0'
  redis.call('HSET', job_key, 'created_us', job.created_us, 'request', pack_fields(REQUEST, job), 'lease', pack_fields(LEASE, job))
  redis.call('HDEL', job_key, 'deadline_us', 'history')
  revoke(id, job, 'fail', 'record_damaged')
  job.state = TO.fail
  return job
end
