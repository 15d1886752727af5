-- A gateway wants a job's frames from now on (its reader has to read the log for what was before).
-- KEYS: base.  ARGV: id, gateway.
-- Returns the job's state, nil if there is no such job.
local id, gateway = ARGV[1], ARGV[2]
local job = load_job(id)
if not job then return nil end
if not FROM.cancel[job.state] then return job.state end
if not string.find(' ' .. job.watchers .. ' ', ' ' .. gateway .. ' ', 1, true) then
  job.watchers = job.watchers == '' and gateway or job.watchers .. ' ' .. gateway
  redis.call('HSET', key('job', id), 'watchers', job.watchers)
  local lease = redis.call('GET', key('lease', id))
  if lease then redis.call('SET', key('lease', id), string.sub(lease, 1, NONCE) .. '1' .. job.watchers) end
end
redis.call('HSET', key('job', id), 'watched', '1')
return job.state
