-- Delete a file's record. Its blobs are deleted afterwards: what is left of them is found by maintenance.
-- KEYS: base
-- ARGV: id, tenant, later_us
--       later_us: when a file that has expired is tried again, if it is in use
-- Reply: {'gone'}; {'in_use'}; else 'ok' and its record, flat field, value, ...
local id, tenant = ARGV[1], ARGV[2]
local record, expiring = key('file', id), base .. WORD.files_expiring
local found = redis.call('HMGET', record, 'tenant', 'bytes')
if found[1] ~= tenant then return {'gone'} end
if redis.call('SCARD', key('file_users', id)) > 0 then
  local due = redis.call('ZSCORE', expiring, id)
  if due and tonumber(due) <= now_us() then redis.call('ZADD', expiring, ARGV[3], id) end
  return {'in_use'}
end
local reply = redis.call('HGETALL', record)
redis.call('DEL', record)
leave_place(id, redis.call('ZSCORE', key('files', tenant), id))
redis.call('ZREM', key('files', tenant), id)
redis.call('ZREM', expiring, id)
count_stored(tenant, -found[2], -1)
return {'ok', unpack(reply)}
