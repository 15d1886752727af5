-- A gateway has no client any more that follows this job.
-- KEYS: base
-- ARGV: id, gateway
-- Reply: the state that the job is in now; nil if there is no such job
local job = load_job(ARGV[1], TO_REQUEUE)
if not job then return nil end
return unwatch(ARGV[1], job, ARGV[2])
