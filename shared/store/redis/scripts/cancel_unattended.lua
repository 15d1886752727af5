-- Cancel the jobs that no gateway has watched for as long as their `keep_ms` allows.
-- KEYS: base
-- ARGV: limit
-- Reply: {how many were due, at most `limit`, id of each that was cancelled...}
local due = redis.call('ZRANGEBYSCORE', base .. WORD.unattended, '-inf', int(now_us()), 'LIMIT', 0, ARGV[1])
local reply = {#due}
for _, id in ipairs(due) do
  local job = load_job(id, TO_REQUEUE)
  if job and FROM.cancel[job.state] and job.watchers == '' then
    revoke(id, job, 'cancel', 'unattended')
    reply[#reply + 1] = id
  end
  redis.call('ZREM', base .. WORD.unattended, id)
end
return reply
