-- Renew the leases of one worker's jobs of this shard, and reply what it needs to write.
-- KEYS: base
-- ARGV: worker, fence_token, next_fence_token, lease_ms, half_life_us, charges, id, lease_id...
--       next_fence_token: becomes the worker's token if `fence_token` is not valid any more; half_life_us: of levels
--       (turns.lua), 0: they never halve; charges: msgpack of flat `<pool>:<lane>`, tenant, cost to add to its level,
--       '' if there is none.
-- Reply: {fence_token, id, state, watchers, watched, ...}; state: '' where the job is the worker's own, else
--       what became of the job
-- Invariant: only the holder renews; XCLAIM by anyone else would take the job away from its new worker. A
--       worker with a valid fencing token has seen all changes to its jobs that were made before.
local worker, fence_token = ARGV[1], ARGV[2]
if not is_fence_valid(worker, fence_token) then fence_token = ARGV[3] end
redis.call('PEXPIRE', key('steps', worker), STEP_LOG_MS)
local reply = {fence_token}
share_rules.half_life_us = tonumber(ARGV[5])
charge_all(ARGV[6])
for i = 7, #ARGV, 2 do
  local id = ARGV[i]
  local job = load_job(id, {'watchers', 'watched'})
  local state = job and job.state or 'gone'
  if job and held(job, ARGV[i + 1]) then
    -- There may be no such stream or group any more: a person has deleted it.
    redis.pcall('XCLAIM', queue_key(job.queue), GROUP, worker, 0, job.entry, 'JUSTID')
    state = ''
  elseif not job then
    keep_log(id) -- no client can read it any more, and it has no time to live
  end
  for _, word in ipairs({id, state, job and job.watchers or '', job and job.watched or ''}) do
    reply[#reply + 1] = word
  end
end
-- Last: a job whose record can't be read has deleted the fence, and the reply tells what became of that job.
redis.call('SET', key('fence', worker), fence_token, 'PX', ARGV[4])
return reply
