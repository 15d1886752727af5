-- Have events delivered to endpoints.
-- KEYS: base
-- ARGV: most that may be pending for an endpoint, flat id, endpoint, type, subject, at_us, ...
-- Reply: how many were dropped as too many are pending for their endpoint
-- Invariant: a delivery is made once, however often it is sent. One that is pending is due at some time.
local most, dropped, now = tonumber(ARGV[1]), 0, int(now_us())
for i = 2, #ARGV, 5 do
  local id, endpoint, kind, subject, at_us = unpack(ARGV, i, i + 4)
  local delivery = key('delivery', id)
  if redis.call('EXISTS', delivery) == 0 and redis.call('EXISTS', key('webhook', endpoint)) == 1 then
    if call('ZCARD', key('due', endpoint)) >= most then
      dropped = dropped + 1
    else
      redis.call('HSET', delivery, 'endpoint', endpoint, 'type', kind, 'subject', subject, 'at_us', at_us,
                 'begun_us', at_us, 'n_tries', '0')
      call('ZADD', key('due', endpoint), now, id)
      call('ZADD', base .. WORD.due, 'LT', now, endpoint)
    end
  end
end
if dropped > 0 then call('HINCRBY', base .. WORD.webhook_counts, 'dropped', dropped) end
return dropped
