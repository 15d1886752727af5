-- Which of these jobs have ended or are gone: for readers that may have missed it.
-- KEYS: base
-- ARGV: id...
-- Reply: flat id, state ('gone' if there is no such job), ... of those
local found = {}
for _, id in ipairs(ARGV) do
  local state = redis.call('HGET', key('job', id), 'state')
  if not STATE[state] then -- gone, or damaged
    local job = load_job(id, {})
    state = job and job.state or 'gone'
  end
  if not FROM.cancel[state] then
    found[#found + 1] = id
    found[#found + 1] = state
  end
end
return found
