-- Deliver an event again, now, with all tries of a new one.
-- KEYS: base
-- ARGV: id, endpoint
-- Reply: 1; 0 if the endpoint has no such delivery
local delivery = key('delivery', ARGV[1])
if call('HGET', delivery, 'endpoint') ~= ARGV[2] then return 0 end
local now = int(now_us())
redis.call('HDEL', delivery, 'state')
redis.call('HSET', delivery, 'n_tries', '0', 'begun_us', now)
redis.call('PERSIST', delivery)
call('ZREM', key('deliveries', ARGV[2]), ARGV[1])
call('ZADD', key('due', ARGV[2]), now, ARGV[1])
call('ZADD', base .. WORD.due, 'LT', now, ARGV[2])
return 1
