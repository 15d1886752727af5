-- Which of these jobs are gone or have ended: for readers that may have missed it.
-- KEYS: base.  ARGV: id, id, ...
-- Returns a flat array id, state ('gone' if there is no such job), ... of those.
local found = {}
for _, id in ipairs(ARGV) do
  local state = redis.call('HGET', key('job', id), 'state')
  if not state or not FROM.cancel[state] then
    found[#found + 1] = id
    found[#found + 1] = state or 'gone'
  end
end
return found
