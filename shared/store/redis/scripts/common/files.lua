-- Files: what each tenant has in the storage. A file counts as one for each of its blobs, and so does an open upload for
-- itself and each of its parts, so that the records of a tenant have a limit as its bytes have.

-- Count so much more, or less.
local function count_stored(tenant, bytes, blobs)
  local stored = key('stored', tenant)
  call('HINCRBY', stored, 'bytes', int(bytes))
  if call('HINCRBY', stored, 'blobs', int(blobs)) <= 0 then call('DEL', stored) end
end

-- Which quota so much more would exceed, as a reply: {'bytes' or 'files', what there is}; nil if none.
local function over_stored(tenant, bytes, blobs, max_bytes, max_blobs)
  local found = call('HMGET', key('stored', tenant), 'bytes', 'blobs')
  local has_bytes, has_blobs = tonumber(found[1] or 0), tonumber(found[2] or 0)
  if has_bytes + bytes > quota(max_bytes) then return {'bytes', int(has_bytes)} end
  if has_blobs + blobs > quota(max_blobs) then return {'files', int(has_blobs)} end
end

-- Write a file's record. `fields`: flat names and values, among them `tenant` and `expires_us`, which may be empty.
local function keep_file(id, tenant, created_us, expires_us, fields)
  redis.call('HSET', key('file', id), unpack(fields))
  call('ZADD', key('files', tenant), created_us, id)
  if expires_us ~= '' then call('ZADD', base .. WORD.files_expiring, expires_us, id) end
end

-- The fields of the tenant's open upload; nil if there is none.
local function open_upload(id, tenant, ...)
  local found = call('HMGET', key('upload', id), 'tenant', 'expires_us', 'status', ...)
  if found[1] ~= tenant or found[3] ~= 'pending' or tonumber(found[2]) <= now_us() then return nil end
  return found
end
