-- The ledger: the bytes of the shard's memory that the data of each tenant take, about, in the hash `kept`. Whatever is stored is added by
-- the call that stores it, and taken off by the one that deletes it. What expires by itself is in the sorted set `expiring`, by the time
-- at which it does, as `<key> <bytes> <tenant>`: sweep.lua takes it off.
local ACCEPTED = ' ' -- the field of all bytes that were ever accepted; no tenant has this name
local RECORD_BYTES, ITEM_BYTES = 2048, 300 -- of a job or conversation, of another record: beside its texts, with its place in sets

-- What so many bytes take: Redis allocates in classes of sizes, a quarter apart.
local function cost(bytes) return math.ceil(1.25 * bytes) end

-- A tenant has so many bytes more from the end of the call on, less if below 0.
local function keep(tenant, bytes) counted[tenant] = (counted[tenant] or 0) + bytes end

local function flush_kept()
  for tenant, bytes in pairs(counted) do
    if redis.call('HINCRBY', base .. 'kept', tenant, int(bytes)) <= 0 then redis.call('HDEL', base .. 'kept', tenant) end
  end
  if accepted > 0 then redis.call('HINCRBY', base .. 'kept', ACCEPTED, int(accepted)) end
  counted, accepted = {}, 0
end

-- A Room (queue.py) from arguments.
local function room_of(own, mark, most, largest)
  return {quota = tonumber(own), mark = tonumber(mark), most = tonumber(most), largest = tonumber(largest)}
end

-- Why a tenant may not keep so many bytes more, 'quota' or 'memory', and how many it keeps; nil if it may. Above the mark it may keep a
-- part of what the one with most keeps, which shrinks to nothing until all room is taken: so who keeps most is refused first.
local function too_much(tenant, bytes, room)
  if room.quota == math.huge and room.most == math.huge then return nil end
  if not kept_before[tenant] then kept_before[tenant] = redis.call('HMGET', base .. 'kept', tenant, ACCEPTED) end
  local own, all = unpack(kept_before[tenant])
  own, all = (tonumber(own) or 0) + (counted[tenant] or 0), (tonumber(all) or 0) + accepted + bytes
  if own + bytes > room.quota then return 'quota', int(own) end
  if all > room.mark then
    local left = (room.most - all) / math.max(1, room.most - room.mark)
    if own + bytes > math.max(own, room.largest) * left then return 'memory', int(own) end
  end
  accepted = accepted + bytes
end

local function expiring_member(name, bytes, tenant) return name .. ' ' .. int(bytes) .. ' ' .. tenant end

-- What lies under a key takes other bytes than before. `due`: when it expires, nil: as before.
local function count_anew(name, tenant, before, after, due)
  local expiring, member = base .. 'expiring', expiring_member(name, before, tenant)
  due = due or redis.call('ZSCORE', expiring, member)
  redis.call('ZREM', expiring, member)
  if due and after > 0 then redis.call('ZADD', expiring, due, expiring_member(name, after, tenant)) end
  keep(tenant, after - before)
end

-- Keep for a while where a deleted entry was in its list: clients that have read up to there go on behind it. `tenant`: for whom it
-- counts, false: it counts for no tenant.
local PLACE_MS, PLACE_BYTES, MOST_ID = 3600000, 150, 128
local function leave_place(id, place, tenant)
  if not place or #id > MOST_ID or string.find(id, '%s') then return end
  redis.call('SET', key('gone', id), place, 'PX', PLACE_MS)
  if not tenant then return end
  local member = expiring_member('gone:' .. id, PLACE_BYTES, tenant)
  if redis.call('ZADD', base .. 'expiring', int(now_us() + PLACE_MS * 1000), member) == 1 then keep(tenant, PLACE_BYTES) end
end

-- A limit as an argument: '0' is none.
local function quota(argument)
  local most = tonumber(argument)
  return most > 0 and most or math.huge
end
