-- A worker's step log (step_log.py): what it wrote in the last engine steps.
local STEP_LOG_MS = 86400000 -- step logs outlive their worker by this much at most

local function set_aside_step(worker, i, sizes, frames)
  dead_letter('steps', worker, 'unreadable step', {sizes = sizes, frames = frames})
  redis.call('LSET', key('steps', worker), i - 1, cmsgpack.pack({}))
  redis.call('LSET', key('steps', worker), i, '')
end

-- Collect from one step the entries of the job whose frames begin with `head`; calls `found(seq, entry)`.
local function scan_step(sizes, frames, head, generation, found)
  local at, n, begin_at = string.find(frames, head, 1, true), 1, 1
  while at do
    -- Text may spell anything, so only what stands where a frame begins is one.
    while begin_at < at do begin_at, n = begin_at + sizes[n], n + 1 end
    if begin_at == at then
      local offset, seq, of_generation = cmsgpack.unpack_limit(frames, 2, at - 1 + #head)
      if at - 1 + sizes[n] > #frames then error('a frame is cut off') end
      if of_generation == generation then
        found(seq, string.sub(frames, offset + 2, at - 1 + sizes[n])) -- a byte tells the kind
      end
    end
    at = string.find(frames, head, at + 1, true)
  end
end

-- The entries that a job's worker has written from number `from` on, if its step log holds them: segments,
-- more than one only where Redis has lost what was between them.
local function unflushed(id, job, from)
  local head = string.char(150) .. cmsgpack.pack(id)
  local steps = call('LRANGE', key('steps', job.worker), 0, -1)
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
  for i = 1, #steps - 1, 2 do
    local frames = steps[i + 1]
    if string.find(frames, head, 1, true) then
      local fine, sizes = pcall(cmsgpack.unpack, steps[i])
      if not fine or not pcall(scan_step, sizes, frames, head, job.generation, found) then
        set_aside_step(job.worker, i, steps[i], frames)
      end
    end
  end
  close_segment()
  return segments
end

-- Flush what a job's worker has written to the job's log, whatever becomes of the worker.
local function flush_step_log(id, job)
  if not FROM.complete[job.state] then return end
  for _, segment in ipairs(unflushed(id, job, next_seq(id))) do append(id, segment) end
end
