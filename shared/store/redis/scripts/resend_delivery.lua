-- Deliver an event again, now, with all tries of a new one.
-- KEYS: base
-- ARGV: endpoint, delivery, tries, record
--       record: of its endpoint's log; '' if the delivery has not ended
-- Reply: 1; 0 if it has moved, or is gone
local endpoint, delivery, tries, record = unpack(ARGV)
local pending, now = key('pending', endpoint), int(now_us())
if record == '' then
  if not redis.call('ZSCORE', pending, delivery) then return 0 end
elseif redis.call('LREM', key('delivery_log', endpoint), 1, record) == 0 then
  return 0
end
redis.call('HSET', key('tries', endpoint), webhook_id(delivery), tries)
redis.call('ZADD', pending, now, delivery)
redis.call('ZADD', base .. WORD.due, 'LT', now, endpoint)
return 1
