-- The log of a job, a stream: each entry, of whatever kind, has the next number, so XLEN is the number of the last one (log.py).

-- Generation and number of the last entry, and how many there are.
local function last_of(id)
  local last = redis.call('XREVRANGE', key('log', id), '+', '-', 'COUNT', 1)[1]
  if not last then return 0, 0, 0 end
  local generation, number = string.match(last[1], '^(%d+)-(%d+)$')
  return tonumber(generation), tonumber(number), redis.call('XLEN', key('log', id))
end

-- Whether the log is what the record says; if not, Redis has lost entries.
local function is_whole(job, generation, number, length) return generation == job.generation and number == length end

-- An entry without output. `why`: of the event.
local function event_entry(event, why) return '\192\192' .. cmsgpack.pack({event, why}) end

-- That of an end that no worker has reported.
local function end_entry(state) return '\192\192\147' .. cmsgpack.pack(state) .. '\192\0' end

local function frame(id, generation, number, entry)
  return '\150' .. cmsgpack.pack(id) .. cmsgpack.pack(generation) .. cmsgpack.pack(number) .. entry
end

-- Append an entry of a new generation: who had the job can't write any more. A generation is a time, so that one that Redis has lost
-- with its last writes is never given again. Returns the frame.
local function mark(id, job, last, number, entry)
  job.generation = math.max(now_us(), last + 1)
  redis.call('XADD', key('log', id), int(job.generation) .. '-' .. int(number + 1), 'd', entry)
  return frame(id, job.generation, number + 1, entry)
end

-- The first node of a stream has 4 KB from the start; a copy has what it needs. A log of more nodes wastes less than it has.
local NODE_ENTRIES = 100 -- stream-node-max-entries
local function compact(id)
  if redis.call('COPY', key('log', id), key('copy', id)) == 1 then redis.call('RENAME', key('copy', id), key('log', id)) end
end
