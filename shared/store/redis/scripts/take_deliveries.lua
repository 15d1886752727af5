-- Take deliveries that are due, for one try each.
-- KEYS: base
-- ARGV: claim_ms, flat endpoint, how many, ...
--       claim_ms: after this time without a result (end_tries.lua) they are due again
-- Reply: {claim, of each endpoint with some: {id, its document, flat delivery, its tries or false, ...}, ...}
-- Invariant: two processes do not have the same delivery at the same time, unless one of them has stopped for claim_ms.
local now, claim = now_us(), int(now_us() + ARGV[1] * 1000)
local taken = {claim}
for i = 2, #ARGV, 2 do
  local endpoint, pending = ARGV[i], key('pending', ARGV[i])
  local found = {endpoint, redis.call('HGET', key('documents', 'webhook'), endpoint)}
  for _, delivery in ipairs(redis.call('ZRANGEBYSCORE', pending, '-inf', int(now), 'LIMIT', 0, ARGV[i + 1])) do
    if not found[2] then -- it was added while its endpoint was deleted
      redis.call('ZREM', pending, delivery)
    else
      redis.call('ZADD', pending, claim, delivery)
      found[#found + 1] = delivery
      found[#found + 1] = redis.call('HGET', key('tries', endpoint), webhook_id(delivery))
    end
  end
  local first = redis.call('ZRANGE', pending, 0, 0, 'WITHSCORES')
  if first[2] then redis.call('ZADD', base .. WORD.due, first[2], endpoint) else redis.call('ZREM', base .. WORD.due, endpoint) end
  if #found > 2 then taken[#taken + 1] = found end
end
return taken
