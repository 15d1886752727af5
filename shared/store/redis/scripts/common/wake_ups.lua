-- Wake-ups: idle workers block on a list per pool; one element wakes one worker.
local MOST_WAKE_UPS = 64
local OWN_MS = 5000 -- a worker looks as often by itself (BLOCK_S in redis_client.py)

local function wake_workers(pool, times)
  local list, elements = key('wake_ups', pool), {}
  for n = 1, math.min(times, MOST_WAKE_UPS - call('LLEN', list)) do elements[n] = 1 end
  if #elements > 0 then redis.call('RPUSH', list, unpack(elements)) end
end

-- Wake this worker, if it waits for a wake-up, for jobs of a pool. If it has no free slot then it wakes another one.
local function wake_worker(pool, worker)
  local list = key('wake_ups', '@' .. worker)
  if call('LLEN', list) == 0 then redis.call('RPUSH', list, pool) end
  redis.call('PEXPIRE', list, OWN_MS)
end
