-- What is to be read of a job's answer.
-- KEYS: base.  ARGV: id, number of the last entry that is known ('': only the last one is wanted).
-- Returns the generation of its latest lease ('' if there is no such job), segments of its log in their order
-- (the first may begin with known ones), and behind them what its worker has said since.
local id, after = ARGV[1], tonumber(ARGV[2])
local log, segments = key('log', id), {}
local many = after and 8 or 1
repeat
  segments = redis.call('LRANGE', log, -many, -1)
  local enough = #segments < many or not after
  if not enough then
    local _, first = cmsgpack.unpack_one(segments[1], 0)
    enough = first <= after + 1
  end
  many = many * 8
until enough
local job = load_job(id, {})
if job and FROM.complete[job.state] then
  local last = segments[#segments]
  for _, segment in ipairs(tail(id, job, last and behind(last) or 1)) do segments[#segments + 1] = segment end
end
table.insert(segments, 1, job and job.generation or '')
return segments
