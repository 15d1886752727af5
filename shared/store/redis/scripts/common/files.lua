-- Files: what each tenant has in the storage.

-- Count so much more, or less.
local function count_stored(tenant, bytes, files)
  local stored = key('stored', tenant)
  call('HINCRBY', stored, 'bytes', int(bytes))
  if call('HINCRBY', stored, 'files', files) <= 0 then call('DEL', stored) end
end
