-- End the jobs whose deadline has passed.
-- KEYS: base
-- ARGV: limit
-- Reply: the ids of at most `limit` of them
local due = redis.call('ZRANGEBYSCORE', base .. WORD.deadlines, '-inf', int(now_us()), 'LIMIT', 0, ARGV[1])
for _, id in ipairs(due) do
  local job = load_job(id, TO_REQUEUE)
  if job and FROM.expire[job.state] then
    revoke(id, job, 'expire', deadline_code(job))
  else
    redis.call('ZREM', base .. WORD.deadlines, id)
  end
end
return due
