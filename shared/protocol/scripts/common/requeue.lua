-- Requeue a job that its worker does not hold any more, or fail it: the retry limit is here.

-- Attempts without progress that make a job a suspect: it may have ended its workers, so it runs alone.
local SUSPECT_FROM = 2

-- Whether a client may have seen a part of the answer, so that no other worker may start it anew. The first
-- entry of an attempt is in the log before it is published (emit.lua), so an empty log proves the contrary.
local function has_output(id, job)
  if job.stream ~= '1' and job.watched ~= '1' then return false end
  flush_step_log(id, job)
  return redis.call('EXISTS', key('log', id)) == 1 or redis.call('HGET', key('job', id), 'log_lost') == '1'
end

-- The attempts that were taken back. A history that can't be read is set aside, and begins anew.
local function read_history(id, packed)
  if packed == '' then return {} end
  local fine, history = pcall(cjson.decode, packed)
  if fine and type(history) == 'table' then return history end
  dead_letter('field', id, 'damaged history', {history = packed})
  return {}
end

-- `blame` counts the attempt against the job (its worker was lost with it). Returns the new state.
local function requeue_or_fail(id, job, reason, blame)
  local history = read_history(id, job.history)
  history[#history + 1] = {worker = job.worker, started_us = job.started_us,
                           ended_us = int(now_us()), reason = reason}
  invalidate_fence(job.worker)
  local fields = {'history', cjson.encode(history)}
  if has_output(id, job) then
    finish_without_result(id, job, 'fail', 'worker_lost', fields)
    return TO.fail
  end
  if blame and job.attempts >= tonumber(job.max_attempts) then
    dead_letter('attempts', id, reason, {attempts = int(job.attempts)})
    finish_without_result(id, job, 'fail', 'too_many_attempts', fields)
    return TO.fail
  end
  leave_queue(job)
  flush_writes()
  redis.call('DEL', key('log', id))
  redis.call('HDEL', key('job', id), 'log_lost')
  local attempts = job.attempts - (blame and 0 or 1)
  local suspect = attempts >= SUSPECT_FROM
  local queue = job.pool .. ':' .. (suspect and SUSPECT_LANE or RETRY_LANE)
  local entry = call('XADD', queue_key(queue), '*', 'job', id)
  local no_holder = {'', '', job.generation, attempts, job.lease_ms, '', job.from_seq}
  redis.call('HSET', key('job', id), 'state', TO.requeue, 'queue', queue, 'entry', entry,
             'lease', cmsgpack.pack(no_holder), unpack(fields))
  call('ZADD', waiting_key(suspect and queue or job.pool .. ':' .. job.lane), job.created_us, id)
  wake_workers(job.pool, suspect and MOST_WAKE_UPS or 1) -- any of them may run nothing
  return TO.requeue
end
