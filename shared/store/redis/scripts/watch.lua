-- Send a job's frames to a gateway from now on (its reader reads the log for what was before).
-- KEYS: base
-- ARGV: id, gateway, follow
--       follow: '1' if a client of the gateway sees the answer grow (the job can't be started anew then).
-- Reply: the job's state; nil if there is no such job
local id, gateway, follow = ARGV[1], ARGV[2], ARGV[3] == '1'
local job = load_job(id, TO_REQUEUE)
if not job then return nil end
if not FROM.cancel[job.state] then return job.state end
if job.keep_ms ~= '' then redis.call('ZREM', base .. WORD.unattended, id) end
local known = is_watcher(job.watchers, gateway)
if known and (job.watched == '1' or not follow) then return job.state end
if not known then job.watchers = job.watchers == '' and gateway or job.watchers .. ' ' .. gateway end
if follow then job.watched = '1' end
redis.call('HSET', key('job', id), 'watchers', job.watchers, 'watched', job.watched)
if FROM.complete[job.state] then invalidate_fence(job.worker) end
return job.state
