-- Wake-ups: idle workers block on a list per pool; one element wakes one worker.
local MOST_WAKE_UPS = 64
local OWN_MS = 5000 -- a worker looks as often by itself

local function wake_workers(pool, times)
  local list, elements = key('wake_ups', pool), {}
  for n = 1, math.min(times, MOST_WAKE_UPS - call('LLEN', list)) do elements[n] = 1 end
  if #elements > 0 then redis.call('RPUSH', list, unpack(elements)) end
end

-- Wake this worker for jobs of a pool; if it has no free slot it wakes another one instead.
local function wake_worker(pool, worker)
  local list = key('wake_ups', '@' .. worker)
  if call('LLEN', list) == 0 then redis.call('RPUSH', list, pool) end
  redis.call('PEXPIRE', list, OWN_MS)
end
