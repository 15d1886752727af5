-- Delete a document that is still as the caller has read it, and that nobody uses.
-- ARGV: kind, id, tenant, before, channel or '', bytes
-- Reply: 'ok', also if it is gone; 'changed'; 'in_use', and one that has expired is looked at again later
local kind, id, tenant, before, channel, bytes = unpack(ARGV)
local all, index, sizes, expiring = document_keys(kind, tenant)
local there = redis.call('HGET', all, id)
if not there then -- a repeated call
  if kind == 'webhook' then drop_deliveries(id, tenant) end -- a try of one has ended later
  return 'ok'
end
if there ~= before then return 'changed' end
if redis.call('EXISTS', key('document_users', id)) == 1 then
  local due = redis.call('ZSCORE', expiring, id)
  if due and tonumber(due) <= now_us() then redis.call('ZADD', expiring, int(now_us() + LATER_US), id) end
  return 'in_use'
end
leave_place(kind .. ':' .. id, redis.call('ZSCORE', index, id), COUNTED[kind] and tenant)
if COUNTED[kind] then keep(tenant, -document_cost(there)) end
redis.call('HDEL', all, id)
redis.call('ZREM', index, id)
redis.call('ZREM', expiring, id)
if bytes ~= '0' and redis.call('HINCRBY', sizes, tenant, -bytes) == 0 then redis.call('HDEL', sizes, tenant) end
if kind == 'webhook' then drop_deliveries(id, tenant) end
tell_change(before, channel)
return 'ok'
