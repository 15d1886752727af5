-- Take all jobs from a worker that has lost its connection, or stands still, and requeue or fail them.
-- KEYS: base
-- ARGV: worker, heartbeat, limit, lane...
--       heartbeat: the channel that the silent worker still has; empty: it has lost its connection.
--       limit: jobs per queue.
-- Reply: flat id, new state, ...
-- Invariant: nothing is taken from a worker that is subscribed to its control channel, unless it has not changed
--       its heartbeat channel since.
local worker, heartbeat, result = ARGV[1], ARGV[2], {}
local function withdraw_slots(pool)
  for _, member in ipairs(redis.call('ZRANGE', key('advertised', pool), 0, -1)) do
    if read_advertiser(member) == worker then redis.call('ZREM', key('advertised', pool), member) end
  end
end
local function is_lost(job) return job.worker == worker end

local stands_still = heartbeat ~= '' and redis.call('PUBSUB', NUMSUB, heartbeat)[2] > 0
if is_connected(worker) and not stands_still then return result end
for _, pool in ipairs(redis.call('SMEMBERS', base .. WORD.pool_names)) do
  withdraw_slots(pool)
  for i = 4, #ARGV do
    local name = pool .. ':' .. ARGV[i]
    local pending = redis.pcall('XPENDING', queue_key(name), GROUP, '-', '+', ARGV[3], worker)
    if not pending.err then take_back(name, pending, is_lost, result) end
  end
  -- It may block on the list of wake-ups, and swallow one that was meant for a worker that runs.
  if stands_still then wake_workers(pool, 1) end
end
return result
