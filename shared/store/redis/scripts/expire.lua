-- End the jobs whose deadline has passed, and those that no gateway has watched for as long as their `keep_ms` allows.
-- KEYS: base
-- ARGV: limit
-- Reply: {how many of either were due, at most `limit`; flat id, new state of those that were ended}
local function due(word) return redis.call('ZRANGEBYSCORE', base .. word, '-inf', int(now_us()), 'LIMIT', 0, ARGV[1]) end
local late, left = due(WORD.deadlines), due(WORD.unattended)
local reply = {math.max(#late, #left)}
local function finish_due(id, job, event, code)
  revoke(id, job, event, code)
  reply[#reply + 1], reply[#reply + 2] = id, TO[event]
end

for _, id in ipairs(late) do
  local job = load_job(id, TO_REQUEUE)
  if job and FROM.expire[job.state] then
    finish_due(id, job, 'expire', deadline_code(job))
  else
    redis.call('ZREM', base .. WORD.deadlines, id)
  end
end
for _, id in ipairs(left) do
  local job = load_job(id, TO_REQUEUE)
  if job and FROM.cancel[job.state] and not is_attended(job) then finish_due(id, job, 'cancel', 'unattended') end
  redis.call('ZREM', base .. WORD.unattended, id)
end
return reply
