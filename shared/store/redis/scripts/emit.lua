-- Store and publish one engine step's output of one worker, for all its jobs of this shard, and end the jobs
-- that finish with it.
-- KEYS: base
-- ARGV: worker, fence_token, repeated, frame_sizes, frames, flushes_and_results, pool, advertiser, slots,
--       acknowledged, gateway, message...
--       repeated: '1' if the same call may have been carried out before; frame_sizes, frames: the step
--       (step_log.py), '' if it has no frames; flushes_and_results: msgpack of {log flushes, results}, '' if
--       there are none; pool: '' if the advertised slots stay as they are; message: '' for all frames.
--       log flushes: flat id, segment of its log, ...
--       results: of {id, lease_id, number of the last entry, segment before it or '', tokens generated, event,
--       error code, watchers, frame, inline, result, response, headers or '', microseconds from the lease to the
--       first output (0: there was none), tokens of the prompt, those of it that were cached, bytes of the answer};
--       response and headers are as the record stores them; inline: the frame ends with the result, whose bytes the
--       script appends (their msgpack head is there).
-- Reply: nil if the worker may not write until it has renewed; else flat id, state, ... of the results that
--       came too late
-- A job may occur in a call only once.
-- Invariant: a fencing token is valid only as long as the worker has seen every change to its jobs, so an
--       entry is written by the lease's holder only. A repeated call changes nothing. One terminal state, one
--       last entry, no entry left in the queue. A job whose log lacks entries is never completed: it fails.
--       PUBLISH follows the log in the same call, once per gateway.
local worker, frame_sizes, frames = ARGV[1], ARGV[4], ARGV[5]
local FIRST_MESSAGE = 11
if not is_fence_valid(worker, ARGV[2]) then return nil end

local new = frame_sizes ~= ''
if new then
  local steps = key('steps', worker)
  if ARGV[3] == '1' and redis.call('LINDEX', steps, -1) == frames and redis.call('LINDEX', steps, -2) == frame_sizes then
    new = false
  else
    if redis.call('RPUSH', steps, frame_sizes, frames) == 2 then redis.call('PEXPIRE', steps, STEP_LOG_MS) end
    redis.call('LTRIM', steps, -2 * STEPS, -1)
  end
end

-- What each gateway gets, in parts: Redis' Lua hashes every byte of a string that it makes, so a string that
-- grows part by part is expensive.
local messages, lost = {}, {}
if new then
  for i = FIRST_MESSAGE, #ARGV, 2 do messages[ARGV[i]] = {ARGV[i + 1] == '' and frames or ARGV[i + 1]} end
end

local function end_job(id, lease_id, seq, segment, tokens, event, code, watchers, frame, inline, result, response, headers,
                       first_us, prompt_tokens, cached_tokens, bytes)
  local job = load_job(id, TO_END)
  if not job or not held(job, lease_id) then
    -- The reply to the first call was lost: this worker has ended the job itself.
    if job and job.lease_id == lease_id and job.state == TO[event] then return end
    -- The log of a job that is gone can't be read any more, and it has no time to live.
    if not job then keep_log(id) end
    lost[#lost + 1] = id
    lost[#lost + 1] = job and job.state or 'gone'
    return
  end
  local expected, found = segment ~= '' and read_segment(segment) or seq, next_seq(id)
  if expected ~= found or job.log_lost ~= '' then
    drop_pieces(id)
    finish(id, job, 'fail', 'log_lost', math.max(seq, found), {}, expected >= found and segment ~= '' and segment)
    lost[#lost + 1] = id
    lost[#lost + 1] = TO.fail
    frame, inline = cmsgpack.pack({id, math.max(seq, found), job.generation, KIND.ended, '', ''}), false
  else
    local fields = {'response', response}
    if result ~= '' then fields = {'response', response, 'result', result} end
    if headers ~= '' then
      fields[#fields + 1] = 'headers'
      fields[#fields + 1] = headers
    end
    if first_us > 0 then
      fields[#fields + 1] = 'first_us'
      fields[#fields + 1] = int(first_us)
    end
    -- A long answer is there already, in pieces (store_piece.lua).
    job.result_bytes, job.reported = bytes, {prompt_tokens, cached_tokens, tokens}
    finish(id, job, event, code, seq, fields, segment ~= '' and segment, tokens)
  end
  for gateway in string.gmatch(watchers, '%S+') do
    local parts = messages[gateway] or {}
    messages[gateway] = parts
    parts[#parts + 1] = frame
    if inline then parts[#parts + 1] = result end
  end
end

if ARGV[6] ~= '' then
  local log_flushes, results = unpack(cmsgpack.unpack(ARGV[6]))
  for i = 1, #log_flushes, 2 do append(log_flushes[i], log_flushes[i + 1]) end
  for _, result in ipairs(results) do end_job(unpack(result)) end
end
flush_writes()
if ARGV[7] ~= '' then advertise(ARGV[7], ARGV[8], ARGV[9], in_flight(ARGV[7], ARGV[8], ARGV[10])) end
for gateway, parts in pairs(messages) do publish(gateway, #parts == 1 and parts[1] or table.concat(parts)) end
return lost
