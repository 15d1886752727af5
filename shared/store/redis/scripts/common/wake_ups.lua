-- Wake-ups: idle workers block on a list per pool; one element wakes one worker.
local MOST_WAKE_UPS = 64

local function wake_workers(pool, times)
  local list, elements = key('wake_ups', pool), {}
  for n = 1, math.min(times, MOST_WAKE_UPS - call('LLEN', list)) do elements[n] = 1 end
  if #elements > 0 then redis.call('RPUSH', list, unpack(elements)) end
end
