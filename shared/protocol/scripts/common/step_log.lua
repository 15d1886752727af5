-- A worker's step log (step_log.py): what it wrote in the last engine steps.
local STEP_LOG_MS = 86400000 -- step logs outlive their worker by this much at most

local step_logs -- of this call: worker -> its step log

-- A worker's step log, read once in a call, and how many jobs' frames were looked for in it.
local function step_log_of(worker)
  local steps = step_logs[worker]
  if not steps then
    steps = call('LRANGE', key('steps', worker), 0, -1)
    steps.jobs = 0
    step_logs[worker] = steps
  end
  steps.jobs = steps.jobs + 1
  return steps
end

local function set_aside_step(worker, i, steps)
  dead_letter('steps', worker, 'unreadable step', {sizes = steps[i], frames = steps[i + 1]})
  steps[i], steps[i + 1] = cmsgpack.pack({}), ''
  redis.call('LSET', key('steps', worker), i - 1, steps[i])
  redis.call('LSET', key('steps', worker), i, '')
end

-- Read a frame that begins with `head`; calls `found(seq, entry)` if it is of this generation.
local function read_frame(frames, begin_at, size, head, generation, found)
  local offset, seq, of_generation = cmsgpack.unpack_limit(frames, 2, begin_at - 1 + #head)
  if begin_at - 1 + size > #frames then error('a frame is cut off') end
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

local function scan_steps(worker, steps, head, generation, found)
  for i = 1, #steps - 1, 2 do
    local frames = steps[i + 1]
    if string.find(frames, head, 1, true) then
      local fine, sizes = pcall(cmsgpack.unpack, steps[i])
      if not fine or not pcall(scan_step, sizes, frames, head, generation, found) then
        set_aside_step(worker, i, steps)
      end
    end
  end
end

-- Where the frames of each job are: their first `size` bytes -> flat step, begin, size, ...
local function index_steps(worker, steps, size)
  local index = {}
  local function index_step(i)
    local frames, begin_at = steps[i + 1], 1
    for _, frame_size in ipairs(cmsgpack.unpack(steps[i])) do
      local head = string.sub(frames, begin_at, begin_at + size - 1)
      local places = index[head] or {}
      index[head] = places
      places[#places + 1], places[#places + 2], places[#places + 3] = i, begin_at, frame_size
      begin_at = begin_at + frame_size
    end
    if begin_at - 1 ~= #frames then error('these are not the sizes of the frames') end
  end
  for i = 1, #steps - 1, 2 do
    if not pcall(index_step, i) then set_aside_step(worker, i, steps) end
  end
  return index
end

-- As scan_steps, for a call that takes many jobs from one worker: Redis serves nobody else meanwhile.
local function look_up_steps(worker, steps, head, generation, found)
  steps.index = steps.index or index_steps(worker, steps, #head)
  local places = steps.index[head] or {}
  for n = 1, #places, 3 do
    local i = places[n]
    local frames = steps[i + 1]
    local fine = frames == '' or pcall(read_frame, frames, places[n + 1], places[n + 2], head, generation, found)
    if not fine then set_aside_step(worker, i, steps) end
  end
end

-- The entries that a job's worker has written from number `from` on, if its step log holds them: segments,
-- more than one only where Redis has lost what was between them.
local function unflushed(id, job, from)
  local head = string.char(150) .. cmsgpack.pack(id)
  local segments, first, entries = {}, from, {}
  local function close_segment()
    if #entries > 0 then segments[#segments + 1] = pack_segment(first, entries) end
  end
  local function found(seq, entry)
    if seq > first + #entries then
      close_segment()
      first, entries = seq, {}
    end
    if seq == first + #entries then entries[#entries + 1] = entry end
  end
  local steps = step_log_of(job.worker)
  local collect = steps.jobs == 1 and scan_steps or look_up_steps
  collect(job.worker, steps, head, job.generation, found)
  close_segment()
  return segments
end

-- Flush what a job's worker has written to the job's log, whatever becomes of the worker.
local function flush_step_log(id, job)
  if not FROM.complete[job.state] then return end
  for _, segment in ipairs(unflushed(id, job, next_seq(id))) do append(id, segment) end
end
