-- Requeue a job that its worker does not hold any more, or fail it: the retry limit is here. The job's log
-- stays: the next lease continues it behind its last entry. `take_back` finds the jobs of a lost worker.
local ATTEMPTS_SHOWN = 100 -- the history keeps so many, the latest ones

-- The field of the record with this attempt as its last one. `last`: number of the log's last entry.
local function history_field(id, job, reason, last)
  local history = job.history == '' and {} or cjson.decode(job.history)
  history[#history + 1] = {worker = job.worker, started_us = job.started_us, ended_us = int(now_us()),
                           reason = reason, entries = math.max(0, last - job.from_seq)}
  if #history > ATTEMPTS_SHOWN then table.remove(history, 1) end
  return {'history', cjson.encode(history)}
end

-- Whether a client may have seen what is in the log, so that another attempt may not begin anew.
local function is_seen(job) return job.stream == '1' or job.watched == '1' end

local function is_log_lost(id, job, last)
  return last < job.from_seq or redis.call('HGET', key('job', id), 'log_lost') == '1'
end

-- Delete the log of a job whose output no client has seen: the next attempt begins anew. Only entries beyond those that
-- it had are progress then (see `has_progress`).
local function restart_log(id, job, last, fields)
  redis.call('DEL', key('log', id))
  redis.call('HDEL', key('job', id), 'log_lost')
  fields[#fields + 1] = 'restart_seq'
  fields[#fields + 1] = int(math.max(last, job.from_seq, tonumber(job.restart_seq) or 0))
end

-- Whether the attempt has added to the answer: an entry that no attempt before had reached.
local function has_progress(job, last)
  return last > math.max(job.from_seq, tonumber(job.restart_seq) or 0)
end

-- Put a job into the retry lane, or back into that of its request (`in_turn`), or a suspect into its own. `attempts`: how
-- many count against it.
local function queue_again(id, job, attempts, fields, in_turn)
  leave_queue(job)
  flush_writes()
  drop_pieces(id)
  local suspect = attempts >= SUSPECT_FROM
  local own_lane = job.pool .. ':' .. job.lane
  local queue = suspect and suspects_of(job.pool) or in_turn and own_lane or job.pool .. ':' .. RETRY_LANE
  local entry = redis.call('XADD', queue_key(queue), '*', 'job', id)
  local no_holder = {'', '', job.generation, attempts, job.lease_ms, '', 0}
  redis.call('HSET', key('job', id), 'state', TO.requeue, 'queue', queue, 'entry', entry,
             'lease', cmsgpack.pack(no_holder), unpack(fields))
  redis.call('ZADD', waiting_key(suspect and queue or own_lane), job.created_us, id)
  if queue == own_lane then
    join_turns(queue, job.tenant, job.created_us, id)
    local found = redis.call('HMGET', key('job', id), 'prefixes', 'deadline_us')
    if found[1] then wait_with_prefixes(id, job.pool, job.created_us, found[1], found[2]) end
    give_turns()
    flush_writes()
  end
  wake_workers(job.pool, suspect and MOST_WAKE_UPS or 1) -- any of them may run nothing
  return TO.requeue
end

-- Take a job from its worker. `blame`: the attempt counts against the job (its worker was lost with it), unless
-- it has made progress. `in_turn`: see queue_again. Returns the new state.
local function requeue_or_fail(id, job, reason, blame, in_turn)
  flush_step_log(id, job)
  local last = next_seq(id) - 1
  local fields = history_field(id, job, reason, last)
  invalidate_fence(job.worker)
  local attempts = has_progress(job, last) and 0 or job.attempts - (blame and 0 or 1)
  if is_log_lost(id, job, last) then
    if is_seen(job) then
      finish_without_result(id, job, 'fail', 'log_lost', fields)
      return TO.fail
    end
    restart_log(id, job, last, fields)
  end
  if blame and attempts >= tonumber(job.max_attempts) then
    finish_without_result(id, job, 'fail', 'too_many_attempts', fields)
    return TO.fail
  end
  return queue_again(id, job, attempts, fields, in_turn)
end

-- Take a job from a worker whose engine can't continue what earlier attempts have generated. It begins anew,
-- unless a client may have seen that; then it fails with `code`. Returns the new state.
local function restart_or_fail(id, job, reason, code)
  flush_step_log(id, job)
  local last = next_seq(id) - 1
  if last == 0 then return requeue_or_fail(id, job, reason, true) end -- there was nothing to continue
  local fields = history_field(id, job, reason, last)
  invalidate_fence(job.worker)
  if is_seen(job) then
    if is_log_lost(id, job, last) then code = 'log_lost' end
    finish_without_result(id, job, 'fail', code, fields)
    return TO.fail
  end
  restart_log(id, job, last, fields)
  return queue_again(id, job, math.max(0, job.attempts - 1), fields)
end

-- Take the jobs behind pending entries of a queue (replies of XPENDING) from their workers, if is_lost(job, pending)
-- is true; requeue or fail them. An entry whose job has left the queue is deleted.
-- Adds to `result`: id, new state, ...
local function take_back(name, pending_entries, is_lost, result)
  for _, pending in ipairs(pending_entries) do
    local entry = redis.call('XRANGE', queue_key(name), pending[1], pending[1])[1]
    local id = entry and job_in(entry)
    local job = id and load_job(id, TO_REQUEUE)
    if not (job and job.queue == name and job.entry == pending[1] and FROM.requeue[job.state]) then
      delete_entry(name, pending[1])
    elseif is_lost(job, pending) then
      redis.call('ZREM', key('advertised', job.pool), advertiser(job.worker, job.lease_ms))
      result[#result + 1] = id
      result[#result + 1] = requeue_or_fail(id, job, 'worker_lost', true)
    end
  end
end
