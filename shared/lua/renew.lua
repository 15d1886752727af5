-- Renew the leases of one worker's jobs of this shard.
-- KEYS: base.  ARGV: worker, id, nonce, id, nonce, ...
-- Returns a flat array id, state, ... of the jobs whose lease this worker has lost.
-- Invariant: only the holder renews; XCLAIM by anyone else would take the job away from its new worker.
local lost = {}
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  if held(id, ARGV[i + 1]) then
    local at = redis.call('HMGET', key('job', id), 'queue', 'entry')
    redis.call('XCLAIM', queue_key(at[1]), GROUP, ARGV[1], 0, at[2], 'JUSTID')
  else
    lost[#lost + 1] = id
    lost[#lost + 1] = redis.call('HGET', key('job', id), 'state') or 'gone'
  end
end
return lost
