-- Delete what is not needed any more: index entries and counts of jobs and conversations that are gone, consumers and advertised slots of
-- workers that are gone; of the ledger (usage.lua) what is too much, where no maintenance process adds it up.
-- KEYS: base
-- ARGV: limit, dead_consumer_ms, most_usage, lane...
--       limit: jobs per call; dead_consumer_ms: idle time after which a consumer counts as dead; most_usage: entries of the ledger.
-- Reply: how many entries and consumers were deleted
-- Invariant: a consumer with entries is kept; deleting it would lose them.
local swept = 0
local expiring = base .. WORD.expiring
for _, member in ipairs(redis.call('ZRANGEBYSCORE', expiring, '-inf', int(now_us()), 'LIMIT', 0, ARGV[1])) do
  local id, tenant = string.match(member, '^(%S+) (.*)$')
  local left_ms = is_conversation(id) and redis.call('PTTL', key('conversation', id)) or 0
  if left_ms > 0 then -- it has been used since
    redis.call('ZADD', expiring, int(now_us() + left_ms * 1000), member)
  else
    swept = swept + redis.call('ZREM', key(is_conversation(id) and 'conversations' or 'jobs', tenant), id)
    count_kept(tenant, id, 0)
    redis.call('ZREM', expiring, member)
  end
end
local dropped = redis.call('XTRIM', base .. WORD.usage, 'MAXLEN', '~', ARGV[3])
if dropped > 0 then redis.call('INCRBY', base .. WORD.usage_dropped, dropped) end
for _, pool in ipairs(redis.call('SMEMBERS', base .. WORD.pool_names)) do
  for _, who in ipairs(redis.call('ZRANGE', key('advertised', pool), 0, -1)) do
    if not is_connected((read_advertiser(who))) then redis.call('ZREM', key('advertised', pool), who) end
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
          swept = swept + 1
        end
      end
    end
  end
end
return swept
