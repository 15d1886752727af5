-- Take deliveries that are due, for one try each.
-- KEYS: base
-- ARGV: claim_ms, flat endpoint, how many, ...
--       claim_ms: after this time without a result (end_delivery.lua) they are due again
-- Reply: of each endpoint with some: {id, its record, flat id of a delivery, its record, ...}, records flat
-- Invariant: two processes do not have the same delivery at the same time, unless one of them has stopped for claim_ms.
local taken, now, again = {}, now_us(), int(now_us() + ARGV[1] * 1000)
for i = 2, #ARGV, 2 do
  local endpoint, due = ARGV[i], key('due', ARGV[i])
  local found = {endpoint, call('HGETALL', key('webhook', endpoint))}
  for _, id in ipairs(call('ZRANGEBYSCORE', due, '-inf', int(now), 'LIMIT', 0, ARGV[i + 1])) do
    local delivery = call('HGETALL', key('delivery', id))
    if #delivery == 0 or #found[2] == 0 then -- Redis has lost one of them
      call('ZREM', due, id)
    else
      call('ZADD', due, again, id)
      found[#found + 1] = id
      found[#found + 1] = delivery
    end
  end
  local first = call('ZRANGE', due, 0, 0, 'WITHSCORES')
  if first[2] then call('ZADD', base .. WORD.due, first[2], endpoint) else call('ZREM', base .. WORD.due, endpoint) end
  if #found > 2 then taken[#taken + 1] = found end
end
return taken
