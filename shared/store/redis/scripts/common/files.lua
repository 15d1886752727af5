-- Files: what each tenant has in the storage.

-- Count so much more, or less.
local function count_stored(tenant, bytes, files)
  local stored = key('stored', tenant)
  redis.call('HINCRBY', stored, 'bytes', int(bytes))
  if redis.call('HINCRBY', stored, 'files', files) <= 0 then redis.call('DEL', stored) end
end
