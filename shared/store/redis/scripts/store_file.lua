-- Keep a file whose bytes are in the storage, unless it is kept already.
-- KEYS: base
-- ARGV: id, tenant, created_us, expires_us or '', bytes, max_bytes, max_files, field, value...
--       max_bytes, max_files: of the tenant, 0: no limit
-- Reply: {'ok', ''}; 'bytes' or 'files', what the tenant has
-- Invariant: `stored` is the sum over the tenant's files.
local id, tenant, expires_us, bytes = ARGV[1], ARGV[2], ARGV[4], tonumber(ARGV[5])
if redis.call('EXISTS', key('file', id)) == 1 then return {'ok', ''} end
local found = redis.call('HMGET', key('stored', tenant), 'bytes', 'files')
local has_bytes, has_files = tonumber(found[1] or 0), tonumber(found[2] or 0)
if has_bytes + bytes > quota(ARGV[6]) then return {'bytes', int(has_bytes)} end
if has_files + 1 > quota(ARGV[7]) then return {'files', int(has_files)} end
redis.call('HSET', key('file', id), unpack(ARGV, 8))
redis.call('ZADD', key('files', tenant), ARGV[3], id)
if expires_us ~= '' then redis.call('ZADD', base .. WORD.files_expiring, expires_us, id) end
count_stored(tenant, bytes, 1)
return {'ok', ''}
