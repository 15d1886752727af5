local COUNTED_MS = 60000 -- the ledger's entries are in the sums long before

-- A job's log: a list of segments, each `first number, number of entries, entries` (job_log.py).
local function pack_segment(first, entries)
  return cmsgpack.pack(first) .. cmsgpack.pack(#entries) .. table.concat(entries)
end

-- The last entry of a job. `tokens`: how many the job generated, nil if its worker did not report it.
local function pack_end(seq, state, tokens)
  return pack_segment(seq, {cmsgpack.pack(tokens) .. cmsgpack.pack(state)})
end

-- A segment's first number and its number of entries; nil if it can't be read.
local function read_segment(segment)
  local fine, _, first, count = pcall(cmsgpack.unpack_limit, segment, 2)
  if fine and type(first) == 'number' and type(count) == 'number' then return first, count end
end

-- Move a segment that can't be read out of a job's log. The entries in it are lost: a job that has not
-- ended can't be completed any more. An ended one gets its last entry again if that was lost.
local function set_aside_segment(id, segment, reason)
  local job, log = key('job', id), key('log', id)
  if call('LREM', log, 0, segment) == 0 then return end
  dead_letter('log', id, reason, {segment = segment})
  local state = redis.pcall('HGET', job, 'state')
  if type(state) ~= 'string' then return end
  redis.call('HSET', job, 'log_lost', '1')
  if STATE[state] and not FROM.cancel[state] then
    local last = redis.call('LINDEX', log, -1)
    local first, count = 1, 0
    if last then first, count = read_segment(last) end
    if first and (not last or string.sub(last, -#state) ~= state) then
      redis.call('RPUSH', log, pack_end(first + count, state))
      redis.call('PEXPIRE', log, math.max(1, redis.call('PTTL', job)))
    end
  end
end

-- The number that a job's next entry has.
local function next_seq(id)
  while true do
    local last = call('LINDEX', key('log', id), -1)
    if not last then return 1 end
    local first, count = read_segment(last)
    if first then return first + count end
    set_aside_segment(id, last, 'unreadable segment')
  end
end

-- Have the log of a job that is gone be deleted, once its tokens were counted.
local function keep_log(id) redis.call('PEXPIRE', key('log', id), COUNTED_MS) end

-- Append a segment to a job's log, unless the log holds it already (a repeated call). Where the log lacks
-- entries before it (Redis lost them, or a person deleted them), `log_lost` records that: the job can't be
-- completed any more (emit.lua). A log whose job is gone has no time to live, so it is deleted.
local function append(id, segment)
  local first, next, job = read_segment(segment), next_seq(id), key('job', id)
  if first < next then return end
  if redis.call('EXISTS', job) == 0 then
    keep_log(id)
    return
  end
  if first > next then call('HSET', job, 'log_lost', '1') end
  redis.call('RPUSH', key('log', id), segment)
end
