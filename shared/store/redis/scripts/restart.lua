-- A worker gives up a job whose log its engine can't continue: the job begins anew, with an empty log, or it
-- fails if a client may have seen what was generated.
-- KEYS: base
-- ARGV: id, lease_id, reason, code
--       reason: goes into the job's history.
--       code: the error of a job that fails, unless its log lacks entries.
-- Reply: the new state; nil if the worker had lost the job already
local id = ARGV[1]
local job = load_job(id, TO_REQUEUE)
if not job or not held(job, ARGV[2]) then return nil end
return restart_or_fail(id, job, ARGV[3], ARGV[4])
