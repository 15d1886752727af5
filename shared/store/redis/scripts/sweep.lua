-- Delete what is not needed any more: index entries and counts of jobs and conversations that are gone, consumers and
-- advertised slots of workers that are gone, queues of adapters without jobs and free slots; of what has ended (ended.lua)
-- the oldest entries, where no maintenance process reads them.
-- KEYS: base
-- ARGV: limit, dead_consumer_ms, most_ended, lane...
--       limit: jobs per call; dead_consumer_ms: idle time after which a consumer counts as dead; most_ended: entries of `ended`.
-- Reply: how many jobs and conversations were looked at, at most `limit`: if as many, there may be more
-- Invariant: a consumer with entries is kept; deleting it would lose them. What is there, or is there again, stays counted.
local expiring = base .. WORD.expiring
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
local dropped = redis.call('XTRIM', base .. WORD.ended, 'MAXLEN', '~', ARGV[3])
if dropped > 0 then redis.call('INCRBY', base .. WORD.ended_dropped, dropped) end

-- Whether a queue is an adapter's and has neither jobs nor free slots. A worker that claims from it makes it known again.
local function is_unused_adapter(pool)
  if pool_of(pool) == pool or redis.call('ZCOUNT', key('advertised', pool), '(0', '+inf') > 0 then return false end
  for i = 4, #ARGV do
    if redis.call('XLEN', queue_key(pool .. ':' .. ARGV[i])) > 0 then return false end
  end
  return true
end

for _, pool in ipairs(redis.call('SMEMBERS', base .. WORD.pool_names)) do
  for _, who in ipairs(redis.call('ZRANGE', key('advertised', pool), 0, -1)) do
    if not is_connected((read_advertiser(who))) then redis.call('ZREM', key('advertised', pool), who) end
  end
  if is_unused_adapter(pool) then
    redis.call('SREM', base .. WORD.pool_names, pool)
    redis.call('DEL', key('advertised', pool), key('wake_ups', pool))
    for i = 4, #ARGV do redis.call('DEL', queue_key(pool .. ':' .. ARGV[i])) end
  end
  for i = 4, #ARGV do
    local stream = queue_key(pool .. ':' .. ARGV[i])
    local consumers = redis.pcall('XINFO', 'CONSUMERS', stream, GROUP)
    if not consumers.err then
      for _, flat in ipairs(consumers) do
        local consumer = {}
        for j = 1, #flat, 2 do consumer[flat[j]] = flat[j + 1] end
        if consumer.pending == 0 and consumer.idle > tonumber(ARGV[2]) then
          redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, consumer.name)
        end
      end
    end
  end
end
return #due
