-- Delete a webhook endpoint with its deliveries.
-- KEYS: base
-- ARGV: id, tenant
-- Reply: how many endpoints the tenant has left; nil if it has none with this id
local id, tenant = ARGV[1], ARGV[2]
if call('HGET', key('webhook', id), 'tenant') ~= tenant then return nil end
for _, word in ipairs({'due', 'deliveries'}) do
  for _, delivery in ipairs(call('ZRANGE', key(word, id), 0, -1)) do redis.call('UNLINK', key('delivery', delivery)) end
  redis.call('UNLINK', key(word, id))
end
call('ZREM', base .. WORD.due, id)
call('ZREM', key('webhooks', tenant), id)
redis.call('UNLINK', key('webhook', id))
return call('ZCARD', key('webhooks', tenant))
