-- Ask for the end of a batch; its owner ends it.
-- ARGV: id, tenant
-- Reply: 1 if the tenant has such a batch
local batch = key('batch', ARGV[1])
local found = redis.call('HMGET', batch, 'tenant', 'status')
if found[1] ~= ARGV[2] then return 0 end
if found[2] == 'validating' or found[2] == 'in_progress' then
  redis.call('HSET', batch, 'status', 'cancelling', 'at:cancelling', int(now_us()))
end
return 1
