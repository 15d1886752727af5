-- Renew the leases of one worker's jobs of this shard, and tell it what it has to know to write.
-- KEYS: base.  ARGV: worker, its fencing token, the next one (taken if it is in that one no more), lease in ms,
--       id, lease id, id, lease id, ...
-- Returns {fencing token, id, state, watchers, watched, ...}; state: '' where the job is its own, else what
--       became of the job.
-- Invariant: only the holder renews; XCLAIM by anyone else would take the job away from its new worker.
--       Who writes in a fencing token has heard of all changes to its jobs that were made before.
local worker, fence_token = ARGV[1], ARGV[2]
if not knows(worker, fence_token) then fence_token = ARGV[3] end
redis.call('SET', key('fence', worker), fence_token, 'PX', ARGV[4])
redis.call('PEXPIRE', key('steps', worker), DAY_MS)
local reply = {fence_token}
for i = 5, #ARGV, 2 do
  local id = ARGV[i]
  local job = load_job(id, {'watchers', 'watched'})
  local state = job and job.state or 'gone'
  if job and held(job, ARGV[i + 1]) then
    -- There may be no such stream or group any more: repair.lua puts the job back into one.
    redis.pcall('XCLAIM', queue_key(job.queue), GROUP, worker, 0, job.entry, 'JUSTID')
    state = ''
  elseif not job and redis.call('EXISTS', key('job', id)) == 0 then
    redis.call('DEL', key('log', id)) -- no one can read it any more, and it has no time to live
  end
  for _, word in ipairs({id, state, job and job.watchers or '', job and job.watched or ''}) do
    reply[#reply + 1] = word
  end
end
return reply
