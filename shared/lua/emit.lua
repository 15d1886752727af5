-- One engine step's output of one worker, for all its jobs of this shard, and the jobs that end with it.
-- KEYS: base.  ARGV: msgpack of an array of jobs, a job being
--       {id, nonce, seq, chunks, journal, head, quiet, ending}
--       chunks, journal: the parts of log entry `seq` (token_log.py), both '' if there is none;
--       head: the entry's frame without its payload, which is `chunks`, or, with quiet, `journal`;
--       quiet: the frame is for those only who watch the job's events;
--       ending: false, or {event, error code, frame, inline, result, {field, value, ...}} with fields
--       of the job's hash; inline: the frame ends with the result, which is to be put behind it.
--       Then, if the worker has other slots to spare than it said last: pool, who offers, slots, those
--       that it takes for left of its last offer.
-- Returns a flat array id, state, ... of the jobs whose lease this worker has lost.
-- A job may stand in a call only once.
-- Invariant: an entry of the log is written by the lease's holder only, and once, so a repeated call
--       changes nothing. One terminal state, one last log entry, no entry left in the queue. PUBLISH
--       follows the log in the same step, once per gateway.
local items = cmsgpack.unpack(ARGV[1])
local lost, frames = {}, {}

-- For each item its lease, or nil: as `held`, in one command for all.
local function held_all()
  local leases = {}
  for from = 1, #items, 1000 do
    local names = {}
    for i = from, math.min(from + 999, #items) do names[#names + 1] = key('lease', items[i][1]) end
    for i, lease in ipairs(redis.call('MGET', unpack(names))) do
      local nonce = items[from + i - 1][2]
      if lease and #nonce == NONCE and string.sub(lease, 1, NONCE) == nonce then
        leases[from + i - 1] = lease
      end
    end
  end
  return leases
end

local function tell(watchers, frame)
  local list = frames[watchers]
  if not list then list = {}; frames[watchers] = list end
  list[#list + 1] = frame
end

local function lose(id, nonce, ending)
  local was = redis.call('HMGET', key('job', id), 'state', 'nonce')
  -- The reply to the first call was lost: this worker has ended the job itself.
  if ending and was[2] == nonce and was[1] == TO[ending[1]] then return end
  lost[#lost + 1] = id
  lost[#lost + 1] = was[1] or 'gone'
end

local function end_job(id, lease, seq, ending)
  local job = load_job(id, TO_END)
  if not job then return lose(id) end
  local fields, result = ending[6], ending[5]
  fields[#fields + 1] = 'result'
  fields[#fields + 1] = result
  finish(id, job, ending[1], ending[2], seq, fields)
  tell(string.sub(lease, NONCE + 2), ending[4] and ending[3] .. cmsgpack.pack(result) or ending[3])
end

local leases = held_all()
for i, item in ipairs(items) do
  local id, nonce, seq, chunks, ending = item[1], item[2], item[3], item[4], item[8]
  local lease = leases[i]
  if not lease then
    lose(id, nonce, ending)
  else
    if chunks ~= '' then
      if append(id, seq, chunks .. item[5]) then
        if not item[7] then
          tell(string.sub(lease, NONCE + 2), item[6] .. chunks)
        elseif string.sub(lease, NONCE + 1, NONCE + 1) == '1' then
          tell(string.sub(lease, NONCE + 2), item[6] .. cmsgpack.pack(item[5]))
        end
      end
      seq = seq + 1
    end
    if ending then end_job(id, lease, seq, ending) end
  end
end
write_down()
if ARGV[2] then offer(ARGV[2], ARGV[3], ARGV[4], unheard(ARGV[2], ARGV[3], ARGV[5])) end
-- Jobs with the same listeners were put together; a gateway that is in several such sets gets one message.
local messages = {}
for watchers, list in pairs(frames) do
  local part = table.concat(list)
  for gateway in string.gmatch(watchers, '%S+') do messages[gateway] = (messages[gateway] or '') .. part end
end
for gateway, message in pairs(messages) do publish(gateway, message) end
return lost
