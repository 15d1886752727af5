-- Take jobs from workers that have not renewed their leases, oldest first, and requeue or fail them.
-- KEYS: base
-- ARGV: shortest_lease_ms, limit, longest_pause_ms, lane...
--       limit: jobs per queue; longest_pause_ms: longest time between two calls, a longer one means that
--       Redis stood still; '': it did not.
-- Reply: flat id, new state, ...
-- Invariant: a lease that its holder renews in time is never taken. Time in which Redis stood still does not
--       count, as nobody could renew: after it every holder has the whole time of its lease again.
local result = {}
local clock, now = base .. WORD.reap_clock, now_us()
local back = 0
if ARGV[3] ~= '' then
  local packed = call('GET', clock)
  local last
  if packed then last, back = string.match(packed, '^(%d+) (%d+)$') end
  if not last or now - last > ARGV[3] * 1000 then back = now end
  redis.call('SET', clock, int(now) .. ' ' .. int(back))
end
local observed_ms = (now - back) / 1000
for _, pool in ipairs(call('SMEMBERS', base .. WORD.pool_names)) do
  for i = 4, #ARGV do
    local name = pool .. ':' .. ARGV[i]
    local stream = queue_key(name)
    local idle = redis.pcall('XPENDING', stream, GROUP, 'IDLE', ARGV[1], '-', '+', ARGV[2])
    if not idle.err then
      for _, pending in ipairs(idle) do
        local entry = redis.call('XRANGE', stream, pending[1], pending[1])[1]
        local id = entry and job_in(entry)
        local job = id and load_job(id, TO_REQUEUE)
        if entry and not id then
          set_aside_entry(name, entry)
        elseif job and job.queue == name and job.entry == pending[1] and FROM.requeue[job.state] then
          -- The lease's length is its holder's setting; another process may have another one.
          if math.min(pending[3], observed_ms) >= tonumber(job.lease_ms) then
            call('ZREM', key('advertised', pool), advertiser(job.worker, job.lease_ms))
            result[#result + 1] = id
            result[#result + 1] = requeue_or_fail(id, job, 'worker_lost', true)
          end
        else
          delete_entry(name, pending[1])
        end
      end
    end
  end
end
return result
