-- The end of a job: the one way into a terminal state.
local SHORT_LOG = 8 -- segments: about 256 tokens

-- Count a large answer as kept. `job.result_bytes`: of the answer in the record, if it has one.
local function count_answer(id, job, segments, last_bytes)
  local bytes = job.result_bytes or 0
  if segments > SHORT_LOG or last_bytes > LARGE_BYTES then
    bytes = bytes + (call('MEMORY', 'USAGE', key('log', id)) or 0)
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
  tell_end(id, state, job.tenant, job.notify)
  note_usage(id, job, state, job.generation > 1 or fields[1] == 'history')
  -- Completed jobs are all the others: to count them would cost each of them a command.
  if event ~= 'complete' then count_in(base .. WORD.ended, state) end
  local last, segments = pack_end(seq, state, tokens), nil
  if segment then
    segments = call('RPUSH', log_key, segment, last)
  else
    segments = call('RPUSH', log_key, last)
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
