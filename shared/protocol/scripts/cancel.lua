-- End a job that nobody wants any more. What was generated so far is kept.
-- KEYS: base.  ARGV: id, tenant.
-- Returns the state the job is in now; nil if there is no such job, or it is another tenant's.
local job = load_job(ARGV[1], TO_TAKE_BACK)
if not job or job.tenant ~= ARGV[2] then return nil end
if not FROM.cancel[job.state] then return job.state end
revoke(ARGV[1], job, 'cancel', 'cancelled')
return TO.cancel
