-- Delete what is not needed any more: index entries and counts of jobs and conversations that are gone; of the stream `ended` what is
-- too much, where no maintenance process reads it.
-- ARGV: limit, most_ended
--       limit: jobs and conversations per call; most_ended: entries of the stream.
-- Reply: how many jobs and conversations were looked at, at most `limit`: if as many, there may be more
-- Invariant: what is there, or is there again, stays counted.
local expiring = base .. 'expiring'
local due = redis.call('ZRANGEBYSCORE', expiring, '-inf', int(now_us()), 'LIMIT', 0, ARGV[1])
for _, member in ipairs(due) do
  local id, tenant = string.match(member, '^(%S+) (.*)$')
  local of_conversation = is_conversation(id)
  local left_ms = redis.call('PTTL', key(of_conversation and 'conversation' or 'job', id))
  if of_conversation and left_ms > 0 then -- it has been used since
    redis.call('ZADD', expiring, int(now_us() + left_ms * 1000), member)
  else
    if left_ms ~= -1 then -- else a job with the same id has not ended yet
      redis.call('ZREM', key(of_conversation and 'conversations' or 'jobs', tenant), id)
      count_kept(tenant, id, 0)
    end
    redis.call('ZREM', expiring, member)
  end
end
local dropped = redis.call('XTRIM', base .. 'ended', 'MAXLEN', '~', ARGV[2])
if dropped > 0 then redis.call('INCRBY', base .. 'ended_dropped', dropped) end
return #due
