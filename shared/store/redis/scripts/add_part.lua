-- Add a part, whose bytes are in the storage, to an open upload.
-- KEYS: base
-- ARGV: upload, part, tenant, bytes, max_parts, max_bytes, max_blobs
--       max_parts: of the upload; max_bytes, max_blobs: of the tenant, 0: no limit
-- Reply: {'ok', ''}; {'gone', ''}: no such upload is open; 'parts' or 'announced', the upload's limit; 'bytes' or 'files', what
--       the tenant has
local id, part, tenant, bytes = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local upload, parts = key('upload', id), key('upload_parts', id)
local found = open_upload(id, tenant, 'bytes', 'received')
if not found then return {'gone', ''} end
if call('HEXISTS', parts, part) == 1 then return {'ok', ''} end
if call('HLEN', parts) >= tonumber(ARGV[5]) then return {'parts', ARGV[5]} end
if tonumber(found[5] or 0) + bytes > tonumber(found[4]) then return {'announced', found[4]} end
local over = over_stored(tenant, bytes, 1, ARGV[6], ARGV[7])
if over then return over end
call('HSET', parts, part, int(bytes))
redis.call('HINCRBY', upload, 'received', int(bytes))
count_stored(tenant, bytes, 1)
return {'ok', ''}
