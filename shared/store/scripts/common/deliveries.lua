-- Deliveries to a webhook endpoint: a record of each (webhooks.py), and their order: those that are pending at the time at
-- which they are due, the others at minus the time at which they ended.
-- An owner is `endpoint tenant`. `delivery_bytes` is what they count for it in the ledger.
local function delivery_keys(owner)
  local endpoint = string.match(owner, '^%S+')
  return key('deliveries', endpoint), key('delivery_records', endpoint), key('delivery_bytes', endpoint)
end

-- Have an owner be due when its first delivery is. Returns whether any is pending.
local function settle(owner, order)
  local first = redis.call('ZRANGEBYSCORE', order, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if first[2] then
    redis.call('ZADD', base .. 'due', first[2], owner)
  else
    redis.call('ZREM', base .. 'due', owner)
  end
  return first[2] ~= nil
end

local function drop_deliveries(endpoint, tenant)
  local owner = endpoint .. ' ' .. tenant
  local order, records, bytes = delivery_keys(owner)
  count_anew('deliveries:' .. endpoint, tenant, tonumber(redis.call('GET', bytes) or 0), 0)
  redis.call('UNLINK', order, records, bytes)
  settle(owner, order)
end

local function delivery_cost(bytes) return bytes == 0 and 0 or ITEM_BYTES + cost(bytes) end
