-- What is kept of each tenant: the bytes of its large things, beside the sets that count all of them. Quotas are checked by it. A thing
-- is counted by its id, so that taking it out twice takes out nothing.
local LARGE_BYTES = 4096 -- what is smaller counts by its number only: short jobs pay nothing

local function kept_bytes(tenant) return tonumber(redis.call('ZSCORE', key('kept', tenant), 'bytes')) or 0 end

-- Count so many bytes of a thing; 0: it is gone.
local function count_kept(tenant, id, bytes)
  local kept = key('kept', tenant)
  local before = tonumber(redis.call('ZSCORE', kept, id)) or 0
  if bytes == before then return end
  if bytes > 0 then redis.call('ZADD', kept, int(bytes), id) else redis.call('ZREM', kept, id) end
  if tonumber(redis.call('ZINCRBY', kept, int(bytes - before), 'bytes')) <= 0 then redis.call('ZREM', kept, 'bytes') end
end

local function count_more(tenant, id, bytes)
  count_kept(tenant, id, bytes + (tonumber(redis.call('ZSCORE', key('kept', tenant), id)) or 0))
end
