-- Delete a webhook endpoint with its deliveries.
-- KEYS: base
-- ARGV: id, tenant
-- Reply: how many endpoints the tenant has left; nil if it has none with this id
local id, tenant = ARGV[1], ARGV[2]
if redis.call('HGET', key('webhook', id), 'tenant') ~= tenant then return nil end
redis.call('UNLINK', key('webhook', id), key('pending', id), key('tries', id), key('delivery_log', id))
redis.call('ZREM', base .. WORD.due, id)
leave_place(id, redis.call('ZSCORE', key('webhooks', tenant), id))
redis.call('ZREM', key('webhooks', tenant), id)
return redis.call('ZCARD', key('webhooks', tenant))
