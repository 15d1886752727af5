-- Keep a file whose bytes are in the storage, unless it is kept already.
-- KEYS: base
-- ARGV: id, tenant, created_us, expires_us or '', bytes, blobs, max_bytes, max_blobs, field, value...
--       max_bytes, max_blobs: of the tenant, 0: no limit
-- Reply: {'ok', ''}; 'bytes' or 'files', what the tenant has
-- Invariant: `stored` is the sum over the tenant's files, open uploads and their parts.
local id, tenant = ARGV[1], ARGV[2]
if redis.call('EXISTS', key('file', id)) == 1 then return {'ok', ''} end
local bytes, blobs = tonumber(ARGV[5]), tonumber(ARGV[6])
local over = over_stored(tenant, bytes, blobs, ARGV[7], ARGV[8])
if over then return over end
keep_file(id, tenant, ARGV[3], ARGV[4], {unpack(ARGV, 9)})
count_stored(tenant, bytes, blobs)
return {'ok', ''}
