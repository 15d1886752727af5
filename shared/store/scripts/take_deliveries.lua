-- Take deliveries that are due, for one try each.
-- ARGV: claim_ms, flat owner, how many, ...
--       claim_ms: after this time without a result (put_deliveries.lua) they are due again
-- Reply: claim, {owner, flat id, record, ...}, ...
-- Invariant: two processes do not have the same delivery at the same time, unless one of them has stopped for claim_ms.
local now, claim = int(now_us()), int(now_us() + ARGV[1] * 1000)
local taken = {claim}
for i = 2, #ARGV, 2 do
  local order, records = delivery_keys(ARGV[i])
  local found = {ARGV[i]}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', order, 0, now, 'LIMIT', 0, ARGV[i + 1])) do
    redis.call('ZADD', order, claim, id)
    found[#found + 1] = id
    found[#found + 1] = redis.call('HGET', records, id)
  end
  settle(ARGV[i], order)
  taken[#taken + 1] = found
end
return taken
