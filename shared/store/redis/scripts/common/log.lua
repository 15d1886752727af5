-- Where a job's output is: in its log, and what is not in there yet in the step log of its worker.
local COUNTED_MS = 60000 -- the job is in the sums of use long before

-- A job's log: a list of segments, each `first number, number of entries, entries` (job_log.py).
local function pack_segment(first, entries)
  return cmsgpack.pack(first) .. cmsgpack.pack(#entries) .. table.concat(entries)
end

-- The last entry of a job. `tokens`: how many the job generated, nil if its worker did not report it.
local function pack_end(seq, state, tokens)
  return pack_segment(seq, {cmsgpack.pack(tokens) .. cmsgpack.pack(state)})
end

-- A segment's first number and its number of entries.
local function read_segment(segment)
  local _, first, count = cmsgpack.unpack_limit(segment, 2)
  return first, count
end

-- The number that a job's next entry has.
local function next_seq(id)
  local last = redis.call('LINDEX', key('log', id), -1)
  if not last then return 1 end
  local first, count = read_segment(last)
  return first + count
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
  if first > next then redis.call('HSET', job, 'log_lost', '1') end
  redis.call('RPUSH', key('log', id), segment)
end

-- A worker's step log (step_log.py): what it wrote in the last engine steps.
local STEP_LOG_MS = 86400000 -- step logs outlive their worker by this much at most
local WINDOWS = {4, 16, STEPS} -- so many of the last steps are read, until they reach back far enough

-- The last steps of a worker, oldest first: sizes, frames, ...
local function last_steps(worker, count) return redis.call('LRANGE', key('steps', worker), -2 * count, -1) end

-- Read a frame that begins with `head`; calls `found(seq, entry)` if it is of this generation.
local function read_frame(frames, begin_at, size, head, generation, found)
  local offset, seq, of_generation = cmsgpack.unpack_limit(frames, 2, begin_at - 1 + #head)
  if of_generation == generation then
    found(seq, string.sub(frames, offset + 2, begin_at - 1 + size)) -- a byte tells the kind
  end
end

-- The frames of one job in one step.
local function scan_step(sizes, frames, head, generation, found)
  local at, n, begin_at = string.find(frames, head, 1, true), 1, 1
  while at do
    -- Text may spell anything, so only what stands where a frame begins is one.
    while begin_at < at do begin_at, n = begin_at + sizes[n], n + 1 end
    if begin_at == at then read_frame(frames, at, sizes[n], head, generation, found) end
    at = string.find(frames, head, at + 1, true)
  end
end

local function scan_steps(steps, head, generation, found)
  for i = 1, #steps - 1, 2 do
    local frames = steps[i + 1]
    if string.find(frames, head, 1, true) then
      scan_step(cmsgpack.unpack(steps[i]), frames, head, generation, found)
    end
  end
end

-- Where the frames of each job are: their first `size` bytes -> flat step, begin, size, ...
local function index_steps(steps, size)
  local index = {}
  for i = 1, #steps - 1, 2 do
    local frames, begin_at = steps[i + 1], 1
    for _, frame_size in ipairs(cmsgpack.unpack(steps[i])) do
      local head = string.sub(frames, begin_at, begin_at + size - 1)
      local places = index[head] or {}
      index[head] = places
      places[#places + 1], places[#places + 2], places[#places + 3] = i, begin_at, frame_size
      begin_at = begin_at + frame_size
    end
  end
  return index
end

-- As scan_steps, for a call that takes many jobs from one worker: Redis runs no other command meanwhile.
local function look_up_steps(worker, of_worker, head, generation, found)
  if not of_worker.index then
    of_worker.steps = last_steps(worker, STEPS)
    of_worker.index = index_steps(of_worker.steps, #head)
  end
  local steps, places = of_worker.steps, of_worker.index[head] or {}
  for n = 1, #places, 3 do
    read_frame(steps[places[n] + 1], places[n + 1], places[n + 2], head, generation, found)
  end
end

-- Collects a job's entries from number `from` on, as segments: more than one only where Redis has lost what was
-- between them.
local function collector(from)
  local segments, first, entries = {}, from, {}
  local collected = {lowest = math.huge}
  local function close_segment()
    if #entries > 0 then segments[#segments + 1] = pack_segment(first, entries) end
  end
  function collected.add(seq, entry)
    collected.lowest = math.min(collected.lowest, seq)
    if seq > first + #entries then
      close_segment()
      first, entries = seq, {}
    end
    if seq == first + #entries then entries[#entries + 1] = entry end
  end
  function collected.segments()
    close_segment()
    return segments
  end
  return collected
end

-- The entries that a job's worker has written from number `from` on, if its step log holds them: segments.
local function unflushed(id, job, from)
  local head, worker = string.char(150) .. cmsgpack.pack(id), job.worker
  local of_worker = step_logs[worker] or {jobs = 0}
  step_logs[worker], of_worker.jobs = of_worker, of_worker.jobs + 1
  if of_worker.jobs > 1 then
    local collected = collector(from)
    look_up_steps(worker, of_worker, head, job.generation, collected.add)
    return collected.segments()
  end
  for _, count in ipairs(WINDOWS) do
    local steps, collected = last_steps(worker, count), collector(from)
    scan_steps(steps, head, job.generation, collected.add)
    if collected.lowest <= from or #steps < 2 * count or count == STEPS then return collected.segments() end
  end
end

-- Flush what a job's worker has written to the job's log, whatever becomes of the worker.
local function flush_step_log(id, job)
  if not FROM.complete[job.state] then return end
  for _, segment in ipairs(unflushed(id, job, next_seq(id))) do append(id, segment) end
end
