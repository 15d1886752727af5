-- End an upload: its file is kept, or it is cancelled, or it has expired and its record goes.
-- KEYS: base
-- ARGV: upload, tenant, status, file, created_us, expires_us or '', bytes, blobs, field, value...
--       status: 'completed', 'cancelled', or '' if it has expired; from `file` on: of its file, if it is completed
-- Reply: {'gone'}; {status that it has already}; else {'ok', all its parts}
-- Invariant: the parts that its file does not have are no longer counted; the caller deletes their blobs.
local id, tenant, status, file = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local upload, parts = key('upload', id), key('upload_parts', id)
local found = call('HMGET', upload, 'tenant', 'expires_us', 'status', 'received')
local expired = tonumber(found[2] or 0) <= now_us()
if found[1] ~= tenant or expired ~= (status == '') then return {'gone'} end
if found[3] ~= 'pending' and not expired then return {found[3]} end
local all = call('HKEYS', parts)
if found[3] == 'pending' then
  local bytes, blobs = tonumber(found[4] or 0), #all + 1
  if status == 'completed' then
    bytes, blobs = bytes - ARGV[7], blobs - ARGV[8]
    keep_file(file, tenant, ARGV[5], ARGV[6], {unpack(ARGV, 9)})
  end
  count_stored(tenant, -bytes, -blobs)
end
redis.call('DEL', parts)
if expired then
  redis.call('DEL', upload)
  call('ZREM', base .. WORD.files_expiring, id)
else
  redis.call('HSET', upload, 'status', status)
end
return {'ok', all}
