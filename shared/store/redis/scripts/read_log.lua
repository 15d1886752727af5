-- Read a job's log, and what its worker has written since the log was last flushed.
-- KEYS: base
-- ARGV: id, after, most_bytes
--       after: number of the last entry that the reader has; '': only the last entry is wanted.
--       most_bytes: of segments; '' for all. At least one with entries that the reader lacks is returned.
-- Reply: {generation of its latest lease ('' if there is no such job), 1 if there is more else 0, segment...},
--       the segments in their order; the first may begin with entries that the reader has
local id, after, most_bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]) or math.huge
local log, segments, more = key('log', id), {}, 0
local WINDOW = 8

-- The first and last entry of a segment.
local function bounds(segment)
  local first, count = read_segment(segment)
  return first, first + count - 1
end

-- Index of a segment such that those before it have nothing behind entry `after`.
local function start_index()
  if not after then return -1 end
  local low, high = 0, redis.call('LLEN', log) - 1
  while high - low >= WINDOW do
    local middle = math.ceil((low + high) / 2)
    if bounds(redis.call('LINDEX', log, middle)) <= after + 1 then low = middle else high = middle - 1 end
  end
  return low
end

-- Read segments from this index on, until there are enough.
local function read_from(index)
  local size = 0
  repeat
    local window = redis.call('LRANGE', log, index, after and index + WINDOW - 1 or -1)
    for _, segment in ipairs(window) do
      local _, last = bounds(segment)
      if after and last > after then
        if size > 0 and size + #segment > most_bytes then more = 1; return end
        size = size + #segment
      end
      segments[#segments + 1] = segment
    end
    index = index + WINDOW
  until #window < WINDOW
end

read_from(start_index())
local job = load_job(id, {})
if more == 0 and job and FROM.complete[job.state] then
  local from, last = 1, segments[#segments]
  if last then
    local first, count = read_segment(last)
    from = first + count
  end
  for _, segment in ipairs(unflushed(id, job, from)) do segments[#segments + 1] = segment end
end
table.insert(segments, 1, job and job.generation or '')
table.insert(segments, 2, more)
return segments
