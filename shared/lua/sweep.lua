-- Take out what nobody will ask for again: jobs that are gone, consumers that are gone.
-- KEYS: base.  ARGV: at most so many jobs per tenant, idle time of a dead consumer in ms, then the lanes.
-- Returns how much was taken out.
-- Invariant: a consumer with entries is kept; deleting it would lose them.
local swept = 0
for _, tenant in ipairs(redis.call('SMEMBERS', base .. WORD.tenants)) do
  local index = key('jobs', tenant)
  for _, id in ipairs(redis.call('ZRANGE', index, 0, tonumber(ARGV[1]) - 1)) do
    if redis.call('EXISTS', key('job', id)) == 0 then swept = swept + redis.call('ZREM', index, id) end
  end
end
for _, pool in ipairs(redis.call('SMEMBERS', base .. WORD.pools)) do
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
