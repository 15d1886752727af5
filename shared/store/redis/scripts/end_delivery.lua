-- Note the result of a try to deliver an event.
-- KEYS: base
-- ARGV: id, number of tries before, tries, next_us or '', state or '', why the endpoint is disabled or '', kept_ms, most kept
--       tries: JSON of the latest ones; next_us: when it is tried again; state: how it has ended; kept_ms, most kept: how long
--       it is kept then, and how many of its endpoint
-- Reply: 1; 0 if another process has noted one meanwhile
local id, delivery = ARGV[1], key('delivery', ARGV[1])
local found = call('HMGET', delivery, 'endpoint', 'n_tries', 'state')
local endpoint = found[1]
if not endpoint or found[2] ~= ARGV[2] or found[3] then return 0 end
redis.call('HSET', delivery, 'n_tries', int(found[2] + 1), 'tries', ARGV[3])
if ARGV[6] ~= '' and redis.call('EXISTS', key('webhook', endpoint)) == 1 then
  redis.call('HSET', key('webhook', endpoint), 'disabled', ARGV[6])
end
if ARGV[5] == '' then
  call('HINCRBY', base .. WORD.webhook_counts, 'retried', 1)
  call('ZADD', key('due', endpoint), ARGV[4], id)
  call('ZADD', base .. WORD.due, 'LT', ARGV[4], endpoint)
  return 1
end
call('HINCRBY', base .. WORD.webhook_counts, ARGV[5], 1)
call('ZREM', key('due', endpoint), id)
if redis.call('EXISTS', key('due', endpoint)) == 0 then call('ZREM', base .. WORD.due, endpoint) end
redis.call('HSET', delivery, 'state', ARGV[5])
redis.call('PEXPIRE', delivery, ARGV[7])
local log = key('deliveries', endpoint)
call('ZADD', log, int(now_us()), id)
call('ZREMRANGEBYSCORE', log, '-inf', int(now_us() - ARGV[7] * 1000))
while call('ZCARD', log) > tonumber(ARGV[8]) do
  redis.call('UNLINK', key('delivery', call('ZPOPMIN', log)[1]))
end
redis.call('PEXPIRE', log, ARGV[7])
return 1
