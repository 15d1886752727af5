-- One engine step's output of one worker, for all its jobs of this shard, and the jobs that end with it.
-- KEYS: base.  ARGV: worker, its fencing token, '1' if the call is a repeated one, places and frames of the step
--       (step_log.py; '' if no job goes on), msgpack of {log flushes, endings} ('' if there are none), then
--       pool, who offers, slots, those that it takes for left of its last offer (pool '': no news), then
--       gateway, message, ... (message '': all frames).
--       log flushes: flat id, segment of its log, ...
--       endings: of {id, lease id, number of the last entry, segment before it or '', tokens generated,
--       event, error code, watchers, frame, inline, result, ending}, the latter as it stands in the job's
--       hash; inline: the frame ends with the result, which is to be put behind it (its head stands there
--       already).
-- Returns nil if the worker may not write as long as it has not renewed, else a flat array id, state,
--       ... of the endings that came too late.
-- A job may stand in a call only once.
-- Invariant: who writes knows all that became of its jobs, so an entry is written by the lease's holder
--       only. A repeated call changes nothing. One terminal state, one last entry, no entry left in the
--       queue. A job whose log lacks entries is never completed: it fails. PUBLISH follows the log in the
--       same step, once per gateway.
local worker, places, frames = ARGV[1], ARGV[4], ARGV[5]
local MESSAGES = 11
if not knows(worker, ARGV[2]) then return nil end

local new = places ~= ''
if new then
  local steps = key('steps', worker)
  if ARGV[3] == '1' and redis.call('LINDEX', steps, -1) == frames and redis.call('LINDEX', steps, -2) == places then
    new = false
  else
    if redis.call('RPUSH', steps, places, frames) == 2 then redis.call('PEXPIRE', steps, DAY_MS) end
    redis.call('LTRIM', steps, -2 * STEPS, -1)
  end
end

-- What each gateway is to hear, in parts: Redis' Lua hashes every byte of a string that it makes, so one
-- that grows part by part is dear.
local messages, lost = {}, {}
if new then
  for i = MESSAGES, #ARGV, 2 do messages[ARGV[i]] = {ARGV[i + 1] == '' and frames or ARGV[i + 1]} end
end

local function end_job(id, lease_id, seq, segment, tokens, event, code, watchers, frame, inline, result, ending)
  local job = load_job(id, TO_END)
  if not job or not held(job, lease_id) then
    -- The reply to the first call was lost: this worker has ended the job itself.
    if job and job.lease_id == lease_id and job.state == TO[event] then return end
    -- Nobody can read the log of a job that is gone, and it has no time to live.
    if not job and redis.call('EXISTS', key('job', id)) == 0 then redis.call('DEL', key('log', id)) end
    lost[#lost + 1] = id
    lost[#lost + 1] = job and job.state or 'gone'
    return
  end
  local expected, found = segment ~= '' and first_of(segment) or seq, next_seq(id)
  if expected ~= found or job.log_lost ~= '' then
    finish(id, job, 'fail', 'log_lost', math.max(seq, found), {}, expected >= found and segment ~= '' and segment)
    lost[#lost + 1] = id
    lost[#lost + 1] = TO.fail
    frame, inline = cmsgpack.pack({id, math.max(seq, found), job.generation, KIND.ended, '', ''}), false
  else
    local fields = {'ending', ending}
    if result ~= '' then fields = {'ending', ending, 'result', result} end
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
  local log_flushes, endings = unpack(cmsgpack.unpack(ARGV[6]))
  for i = 1, #log_flushes, 2 do append(log_flushes[i], log_flushes[i + 1]) end
  for _, ending in ipairs(endings) do end_job(unpack(ending)) end
end
write_down()
if ARGV[7] ~= '' then offer(ARGV[7], ARGV[8], ARGV[9], unheard(ARGV[7], ARGV[8], ARGV[10])) end
for gateway, parts in pairs(messages) do publish(gateway, #parts == 1 and parts[1] or table.concat(parts)) end
return lost
