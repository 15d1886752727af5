-- What is kept of each tenant: the bytes of its large things, beside the sets that count all of them. Quotas are checked by it. A thing
-- is counted by its id, so that taking it out twice takes out nothing.
local LARGE_BYTES = 4096 -- what is smaller counts by its number only: short jobs pay nothing

local function kept_bytes(tenant) return tonumber(redis.call('ZSCORE', key('kept', tenant), 'bytes')) or 0 end

-- Count a thing with so many bytes, or with `more` than before. 0: it is gone.
local function count_kept(tenant, id, bytes, more)
  local kept = key('kept', tenant)
  local before = tonumber(redis.call('ZSCORE', kept, id)) or 0
  if more then bytes = before + more end
  if bytes == before then return end
  if bytes > 0 then redis.call('ZADD', kept, int(bytes), id) else redis.call('ZREM', kept, id) end
  if tonumber(redis.call('ZINCRBY', kept, int(bytes - before), 'bytes')) <= 0 then redis.call('ZREM', kept, 'bytes') end
end

-- Keep for a while where a deleted entry was in its list: clients that have read up to there go on behind it.
local PLACE_MS = 3600000
local function leave_place(id, place)
  if place then redis.call('SET', key('gone', id), place, 'PX', PLACE_MS) end
end

-- A quota as an argument: '0' is none.
local function quota(argument)
  local most = tonumber(argument)
  return most > 0 and most or math.huge
end
