-- A gateway wants a job's frames from now on (its reader has to read the log for what was before).
-- KEYS: base.  ARGV: id, gateway, '1' if its client sees the answer grow (it can't be started anew then).
-- Returns the job's state, nil if there is no such job.
local id, gateway, sees = ARGV[1], ARGV[2], ARGV[3] == '1'
local job = load_job(id, TO_TAKE_BACK)
if not job then return nil end
if not FROM.cancel[job.state] then return job.state end
local known = string.find(' ' .. job.watchers .. ' ', ' ' .. gateway .. ' ', 1, true)
if known and (job.watched == '1' or not sees) then return job.state end
if not known then job.watchers = job.watchers == '' and gateway or job.watchers .. ' ' .. gateway end
if sees then job.watched = '1' end
redis.call('HSET', key('job', id), 'watchers', job.watchers, 'watched', job.watched)
if FROM.complete[job.state] then invalidate_fence(job.worker) end
return job.state
