-- Take jobs from workers that have not renewed their leases, oldest first, and requeue or fail them.
-- KEYS: base
-- ARGV: shortest_lease_ms, limit, longest_pause_ms, lane...
--       limit: jobs per queue; longest_pause_ms: longest time between two calls, a longer one means that
--       Redis stood still; '': it did not.
-- Reply: flat id, new state, ...
-- Invariant: a lease that its holder renews in time is never taken. Time in which Redis stood still does not
--       count, as no holder could renew: after it every holder has the whole time of its lease again.
local result = {}
local clock, now = base .. WORD.reap_clock, now_us()
local back = 0
if ARGV[3] ~= '' then
  local packed = redis.call('GET', clock)
  local last
  if packed then last, back = string.match(packed, '^(%d+) (%d+)$') end
  if not last or now - last > ARGV[3] * 1000 then back = now end
  redis.call('SET', clock, int(now) .. ' ' .. int(back))
end
local observed_ms = (now - back) / 1000
-- The lease's length is its holder's setting; another process may have another one.
local function is_lost(job, pending) return math.min(pending[3], observed_ms) >= tonumber(job.lease_ms) end
for _, pool in ipairs(redis.call('SMEMBERS', base .. WORD.pool_names)) do
  for i = 4, #ARGV do
    local name = pool .. ':' .. ARGV[i]
    local idle = redis.pcall('XPENDING', queue_key(name), GROUP, 'IDLE', ARGV[1], '-', '+', ARGV[2])
    if not idle.err then take_back(name, idle, is_lost, result) end
  end
end
return result
