-- Read a job's log, and what its worker has written since the log was last flushed.
-- KEYS: base
-- ARGV: id, after, most_bytes
--       after: number of the last entry that the reader has; '': only the last entry is wanted.
--       most_bytes: of segments; '' for all. At least one with entries that the reader lacks is returned.
-- Reply: {generation of its latest lease ('' if there is no such job), 1 if there is more else 0, segment...},
--       the segments in their order; the first may begin with entries that the reader has
local id, after, most_bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local log, segments = key('log', id), {}
local many, damaged = after and 8 or 1, false
repeat
  segments = call('LRANGE', log, -many, -1)
  damaged = false
  for _, segment in ipairs(segments) do
    if not read_segment(segment) then
      set_aside_segment(id, segment, 'unreadable segment')
      damaged = true
    end
  end
  local enough = #segments < many or not after or read_segment(segments[1]) and read_segment(segments[1]) <= after + 1
  if enough and not damaged then break end
  if not damaged then many = many * 8 end
until false
local more = 0
if most_bytes then
  local part, size = {}, 0
  for _, segment in ipairs(segments) do
    local first, count = read_segment(segment)
    if first + count > after + 1 then
      if size > 0 and size + #segment > most_bytes then more = 1; break end
      size = size + #segment
    end
    part[#part + 1] = segment
  end
  segments = part
end
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
