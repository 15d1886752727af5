-- Take back the jobs of workers that have not renewed their leases, oldest first.
-- KEYS: base.  ARGV: shortest lease to look at in ms, at most so many per queue, longest time between two
--       calls in ms (more means that Redis stood still; '': unknown), then the lanes.
-- Returns a flat array id, new state, ...
-- Invariant: a lease that its holder renews in time is never taken. Time in which Redis stood still does
-- not count, as nobody could renew: after it every holder has its lease's whole time again.
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
for _, pool in ipairs(redis.call('SMEMBERS', base .. WORD.pool_names)) do
  for i = 4, #ARGV do
    local name = pool .. ':' .. ARGV[i]
    local stream = queue_key(name)
    local idle = redis.pcall('XPENDING', stream, GROUP, 'IDLE', ARGV[1], '-', '+', ARGV[2])
    if not idle.err then
      for _, pending in ipairs(idle) do
        local entry = redis.call('XRANGE', stream, pending[1], pending[1])[1]
        local id = entry and entry[2][2]
        local job = id and load_job(id, TO_TAKE_BACK)
        if job and job.queue == name and job.entry == pending[1] and FROM.requeue[job.state] then
          -- How long a lease is, its holder says; another process may be set up differently.
          if math.min(pending[3], observed_ms) >= tonumber(job.lease_ms) then
            redis.call('ZREM', key('advertised', pool), advertiser(job.worker, job.lease_ms))
            result[#result + 1] = id
            result[#result + 1] = give_back(id, job, 'worker_lost', true)
          end
        else
          redis.call('XACK', stream, GROUP, pending[1])
          redis.call('XDEL', stream, pending[1])
        end
      end
    end
  end
end
return result
