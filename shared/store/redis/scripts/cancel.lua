-- End a job that its client does not want any more. What was generated so far is kept.
-- KEYS: base
-- ARGV: id, tenant
-- Reply: the state that the job is in now; nil if there is no such job, or it is another tenant's
local job = load_job(ARGV[1], TO_REQUEUE)
if not job or job.tenant ~= ARGV[2] then return nil end
if not FROM.cancel[job.state] then return job.state end
revoke(ARGV[1], job, 'cancel', 'cancelled')
return TO.cancel
