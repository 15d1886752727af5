-- Take out what nobody will ask for again: jobs that are gone, consumers that are gone, and their offers.
-- KEYS: base.  ARGV: at most so many jobs, idle time of a dead consumer in ms, then the lanes.
-- Returns how much was taken out.
-- Invariant: a consumer with entries is kept; deleting it would lose them.
local swept = 0
local expiring = base .. WORD.expiring
for _, member in ipairs(redis.call('ZRANGEBYSCORE', expiring, '-inf', int(now_us()), 'LIMIT', 0, ARGV[1])) do
  local id, tenant = string.match(member, '^(%S+) (.+)$')
  swept = swept + redis.call('ZREM', key('jobs', tenant), id)
  redis.call('ZREM', expiring, member)
end
for _, pool in ipairs(redis.call('SMEMBERS', base .. WORD.pool_names)) do
  for _, who in ipairs(redis.call('ZRANGE', key('advertised', pool), 0, -1)) do
    local worker = string.match(who, '^%S+')
    if redis.call('PUBSUB', 'NUMSUB', CHANNEL.control .. worker)[2] == 0 then
      redis.call('ZREM', key('advertised', pool), who)
    end
  end
  for i = 3, #ARGV do
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
