-- Take a gateway that is gone out of the watchers of jobs: of at most `limit` entries of one queue.
-- KEYS: base
-- ARGV: gateway, queue (`<pool>:<lane>`), after, limit
--       after: the stream entry at which the call before stopped ('': none).
-- Reply: {entry at which this call stopped ('': it was the last), how many jobs it watched}; nil if the gateway
--       receives frames here, so that it is not gone
local gateway, after, limit = ARGV[1], ARGV[3], tonumber(ARGV[4])
if redis.call('PUBSUB', NUMSUB, CHANNEL.tokens .. gateway)[2] > 0 then return nil end
local entries = redis.call('XRANGE', queue_key(ARGV[2]), after == '' and '-' or after, '+', 'COUNT', limit + 1)
local watched = 0
for i = 1, math.min(#entries, limit) do
  local id = job_in(entries[i])
  local watchers = redis.call('HGET', key('job', id), 'watchers')
  if watchers and is_watcher(watchers, gateway) then
    local job = load_job(id, TO_REQUEUE)
    if job then
      unwatch(id, job, gateway)
      watched = watched + 1
    end
  end
end
return {#entries > limit and entries[limit + 1][1] or '', watched}
