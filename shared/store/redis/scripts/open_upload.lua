-- Begin an upload in parts.
-- KEYS: base
-- ARGV: id, tenant, expires_us, bytes, max_bytes, max_blobs, field, value...
--       bytes: that its file will have; max_bytes, max_blobs: of the tenant, 0: no limit
-- Reply: {'ok', ''}; 'bytes' or 'files', what the tenant has
local id, tenant = ARGV[1], ARGV[2]
if redis.call('EXISTS', key('upload', id)) == 1 then return {'ok', ''} end
local over = over_stored(tenant, tonumber(ARGV[4]), 1, ARGV[5], ARGV[6])
if over then return over end
redis.call('HSET', key('upload', id), unpack(ARGV, 7))
call('ZADD', base .. WORD.files_expiring, ARGV[3], id)
count_stored(tenant, 0, 1)
return {'ok', ''}
