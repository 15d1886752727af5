-- Store a webhook endpoint, or change one.
-- KEYS: base
-- ARGV: id, tenant, most that the tenant may have ('': change one that is there), created_us, field, value...
-- Reply: 1; 0 if the tenant has as many, or has none with this id
local id, tenant, webhook = ARGV[1], ARGV[2], key('webhook', ARGV[1])
local owner = redis.call('HGET', webhook, 'tenant')
if ARGV[3] == '' then
  if owner ~= tenant then return 0 end
else
  if not owner and redis.call('ZCARD', key('webhooks', tenant)) >= tonumber(ARGV[3]) then return 0 end
  redis.call('ZADD', key('webhooks', tenant), ARGV[4], id)
end
redis.call('HSET', webhook, 'tenant', tenant, unpack(ARGV, 5))
return 1
