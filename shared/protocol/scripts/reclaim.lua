-- Take all jobs from a worker that has lost its connection, and requeue or fail them.
-- KEYS: base
-- ARGV: worker, limit, lane...
--       limit: jobs per queue.
-- Reply: flat id, new state, ...
-- Invariant: nothing is taken from a worker that is subscribed to its control channel.
local worker, result = ARGV[1], {}
local function withdraw_slots(pool)
  for _, member in ipairs(call('ZRANGE', key('advertised', pool), 0, -1)) do
    if read_advertiser(pool, member) == worker then call('ZREM', key('advertised', pool), member) end
  end
end
local function is_lost() return true end

if is_connected(worker) then return result end
for _, pool in ipairs(call('SMEMBERS', base .. WORD.pool_names)) do
  withdraw_slots(pool)
  for i = 3, #ARGV do
    local name = pool .. ':' .. ARGV[i]
    local pending = redis.pcall('XPENDING', queue_key(name), GROUP, '-', '+', ARGV[2], worker)
    if not pending.err then take_back(name, pending, is_lost, result) end
  end
end
return result
