-- A job: its record, a hash (record.py), the one function that takes it away, and the one way into its end.
local FIELDS = {'state', 'request', 'lease', 'entry', 'created_us', 'deadline_us', 'watchers', 'watched', 'history', 'notify', 'weight',
                'prefixes', 'origin', 'kept', 'body_bytes', 'body'}
local N_SHORT = #FIELDS - 1
local ATTEMPTS_SHOWN = 100 -- the history keeps so many, the latest ones
local COUNTED_MS = 60000 -- the use of a job that is gone is in the sums long before
-- The last lease. `generation`: of the log's last entry; `number`: of the claim's entry; `start`: of the entry behind which the present
-- answer begins, 0: it has never begun anew; `best`: so many entries had answers that are void; `attempts`: how many count against the
-- job; `claims`: how many there were.
local LEASE = {'worker', 'generation', 'number', 'start', 'best', 'attempts', 'claims', 'started_us'}
local NO_LEASE = {worker = '', generation = 0, number = 0, start = 0, best = 0, attempts = 0, claims = 0, started_us = 0}
local NO_REQUEST = {} -- in place of a request that can't be read
for i = 1, #REQUEST do NO_REQUEST[REQUEST[i]] = '' end
NO_REQUEST.lane, NO_REQUEST.ttl_ms, NO_REQUEST.max_attempts = LANES[#LANES], '86400000', '1'

-- The words of a packed array under these names; nil if it can't be read.
local function unpacked(names, packed)
  local fine, words = pcall(cmsgpack.unpack, packed)
  if not fine or type(words) ~= 'table' or #words < #names then return nil end
  local result = {}
  for i = 1, #names do
    if type(words[i]) == 'table' then return nil end
    result[names[i]] = words[i]
  end
  return result
end

local requests = {} -- many jobs of a call have the same one
local function request_of(packed)
  if requests.packed ~= packed then
    local request = unpacked(REQUEST, packed)
    if request and not (tonumber(request.ttl_ms) and tonumber(request.max_attempts)) then request = nil end
    requests = {packed = packed, found = request}
  end
  return requests.found
end

local function pack_lease(job)
  return cmsgpack.pack({job.worker, job.generation, job.number, job.start, job.best, job.attempts, job.claims, job.started_us})
end

local function deadline_code(job)
  local function is_over(ms) return ms ~= '' and job.created_us + ms * 1000 <= now_us() end
  if job.claims == 0 and is_over(job.queue_ms) then return 'queue_deadline_exceeded' end
  if job.run_ms ~= '' and not is_over(job.total_ms) then return 'run_deadline_exceeded' end
  return 'deadline_exceeded'
end

-- The one way into a terminal state; the end is in the log already. `fields` go into the record.
local function finish(id, job, number, state, code, fields)
  local job_key, log_key = key('job', id), key('log', id)
  if code ~= '' then fields[#fields + 1], fields[#fields + 2] = 'error_code', code end
  if number < NODE_ENTRIES then compact(id) end
  local before = tonumber(job.kept) or 0
  local kept = before + (redis.call('MEMORY', 'USAGE', log_key) or 0) + cost(job.result_bytes or 0)
  redis.call('HSET', job_key, 'state', state, 'lease', pack_lease(job), 'finished_us', int(now_us()), 'kept', int(kept), unpack(fields))
  if code == 'too_many_attempts' then redis.call('INCR', base .. 'given_up') end
  if job.state == 'queued' then leave_line(id, job) elseif job.worker ~= '' then drop(job.pool, job.worker, job.entry) end
  leave_queue(job.pool, job.entry)
  note_end(id, state, job)
  if job.deadline_us ~= '' then defer('ZREM', base .. 'deadlines', id) end
  redis.call('PEXPIRE', job_key, job.ttl_ms)
  if job.body_bytes ~= '' then redis.call('PEXPIRE', key('body', id), job.ttl_ms) end
  redis.call('PEXPIRE', log_key, int(job.ttl_ms + COUNTED_MS)) -- so that a record has its log
  defer('ZADD', base .. 'expiring', int(now_us() + job.ttl_ms * 1000), expiring_member('job:' .. id, kept, job.tenant))
  keep(job.tenant, kept - before)
end

-- Delete the pieces of an answer (store_piece.lua) whose attempt has ended before its job.
local function drop_pieces(id)
  local number = 0
  while redis.call('HDEL', key('job', id), 'result:' .. number) == 1 do number = number + 1 end
end

-- Whether a client may have seen a part of the answer, so that it can't begin anew.
local function is_seen(job) return job.stream == '1' or job.watched == '1' end

-- Take a job from whoever has it: the one place where jobs are taken away. `event`: a state that ends it, `requeued` (its worker is
-- lost) or `handed_over`; `why`: the error code of an end, else the reason. Returns its new state; nil if that can't happen to it.
local function take(id, job, event, why)
  if ENDS[job.state] or not ENDS[event] and job.state ~= 'in_progress' then return nil end
  local last, number, length = last_of(id)
  -- An attempt has made progress if it has added to the answer what no attempt before had reached.
  local has_progress, state = number > math.max(job.number, job.start + job.best), event
  if not ENDS[event] then
    local attempts = unpacked_history(job)
    attempts[#attempts + 1] = {job.worker, job.started_us, now_us(), why, math.max(0, number - job.number)}
    if #attempts > ATTEMPTS_SHOWN then table.remove(attempts, 1) end
    job.history = cmsgpack.pack(attempts)
    job.attempts = has_progress and 0 or job.attempts + (event == 'requeued' and 1 or 0)
    if is_seen(job) and not is_whole(job, last, number, length) then
      state, why = 'failed', 'log_lost'
    elseif event == 'requeued' and job.attempts >= tonumber(job.max_attempts) then
      state, why = 'failed', 'too_many_attempts'
    end
  end
  local ends, held_as = ENDS[state], job.generation
  tell(job.watchers, mark(id, job, last, number, ends and end_entry(state) or event_entry(event, why)))
  if job.state == 'in_progress' then
    drop_pieces(id)
    if ENDS[event] then
      local hint = hints[job.worker] or {}
      hints[job.worker], hint[#hint + 1], hint[#hint + 2] = hint, id, held_as
    end
  end
  if ends then
    local fields = {}
    if not ENDS[event] then
      fields = {'history', job.history}
      drop(job.pool, job.worker, job.entry)
      job.worker = ''
    end
    finish(id, job, number + 1, state, why, fields)
    return state
  end
  drop(job.pool, job.worker, job.entry)
  job.state, job.worker = 'queued', ''
  redis.call('HSET', key('job', id), 'state', job.state, 'lease', pack_lease(job), 'history', job.history)
  -- Its turn has come before, unless it failed. What has made room for others waits behind them.
  local is_first = why ~= 'handed_back' and (has_progress or event == 'handed_over')
  if is_first then enter_first(id, job) else enter_line(id, job) end
  wake_for(job.pool, job.lane)
  return job.state
end

local function is_entry_id(entry) return string.match(entry, '^%d+%-%d+$') ~= nil end

-- A record that can't be read: the job fails, and the queues go on without it.
local function fail_damaged(id, job)
  if ENDS[job.state] then return job end
  if job.state ~= 'in_progress' or job.worker == '' then job.state = 'queued' end
  if not tonumber(job.created_us) then job.created_us = int(now_us()) end
  if not is_entry_id(job.entry) then job.entry = '0-1' end -- no entry has it
  job.deadline_us = '0'
  redis.call('HSET', key('job', id), 'created_us', job.created_us)
  redis.call('HDEL', key('job', id), 'deadline_us', 'history')
  job.history = ''
  take(id, job, 'failed', 'record_damaged')
  job.state = 'failed'
  return job
end

-- A job with the fields of its record ('' if it has no such), of its request and of its lease; nil if there is none. One whose record
-- can't be read has failed.
local function load_job(id, with_body)
  local values = redis.call('HMGET', key('job', id), unpack(FIELDS, 1, with_body and #FIELDS or N_SHORT))
  if not values[1] and not values[2] then return nil end
  local lease = values[3] and unpacked(LEASE, values[3])
  local job, request = lease or {}, request_of(values[2] or '')
  for name, value in pairs(lease and {} or NO_LEASE) do job[name] = value end
  setmetatable(job, {__index = request or NO_REQUEST})
  for i = 1, #values do job[FIELDS[i]] = values[i] or '' end
  local is_state = job.state == 'queued' or job.state == 'in_progress' or ENDS[job.state]
  local is_damaged = not request or not is_state or values[3] and not lease or not tonumber(job.created_us)
                     or job.deadline_us ~= '' and not tonumber(job.deadline_us) or with_body and not (values[#FIELDS] or values[N_SHORT])
                     or job.state == 'in_progress' and not lease or not is_entry_id(job.entry)
                     or job.history ~= '' and not unpacked_history(job)
  if is_damaged then return fail_damaged(id, job) end
  return job
end

-- Take back what a worker has, or mend its list: the record says who has a job. Returns the new state, nil if it was not taken.
local function take_back(held, worker, event, why)
  local id, pool, entry = unpack(held)
  local job = load_job(id)
  local state = job and job.worker == worker and job.entry == entry and take(id, job, event, why)
  if not state then drop(pool, worker, entry) end
  return state
end

-- The texts of a job that has ended have so many bytes more.
local function recount_job(id, tenant, more)
  local before = tonumber(redis.call('HGET', key('job', id), 'kept') or '')
  if not before then return end
  local kept = math.max(0, before + cost(more))
  redis.call('HSET', key('job', id), 'kept', int(kept))
  count_anew('job:' .. id, tenant, before, kept)
end
