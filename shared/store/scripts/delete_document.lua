-- Delete a document that is still as the caller has read it, and that nobody uses.
-- ARGV: kind, id, tenant, before, channel or '', bytes, word...
--       words: keys of these and its id go with it
-- Reply: 'ok', also if it is gone; 'changed'; 'in_use', and one that has expired is looked at again later
local kind, id, tenant, before, channel, bytes = unpack(ARGV)
local all, index, sizes, expiring = document_keys(kind, tenant)
local there = redis.call('HGET', all, id)
if not there then return 'ok' end -- a repeated call
if there ~= before then return 'changed' end
if redis.call('EXISTS', key('document_users', id)) == 1 then
  local due = redis.call('ZSCORE', expiring, id)
  if due and tonumber(due) <= now_us() then redis.call('ZADD', expiring, int(now_us() + LATER_US), id) end
  return 'in_use'
end
leave_place(kind .. ':' .. id, redis.call('ZSCORE', index, id))
redis.call('HDEL', all, id)
redis.call('ZREM', index, id)
redis.call('ZREM', expiring, id)
if bytes ~= '0' and redis.call('HINCRBY', sizes, tenant, -bytes) == 0 then redis.call('HDEL', sizes, tenant) end
for i = 7, #ARGV do redis.call('UNLINK', key(ARGV[i], id)) end
tell_change(before, channel)
return 'ok'
