-- End the jobs whose deadline has passed.
-- KEYS: base.  ARGV: at most so many.
-- Returns their ids.
local due = redis.call('ZRANGEBYSCORE', base .. WORD.deadlines, '-inf', int(now_us()), 'LIMIT', 0, ARGV[1])
for _, id in ipairs(due) do
  local job = load_job(id, TO_TAKE_BACK)
  if job and FROM.expire[job.state] then
    revoke(id, job, 'expire', 'deadline_exceeded')
  else
    redis.call('ZREM', base .. WORD.deadlines, id)
  end
end
return due
