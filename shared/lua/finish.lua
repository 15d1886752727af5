-- The worker has carried a job out.
-- KEYS: base.  ARGV: id, nonce, event ('complete' | 'fail'), error code, seq of the log's last entry,
--       frame for the readers, then field, value, ... for the job's hash.
-- Returns 'ok', or the job's state ('gone' if there is none) when this worker has lost the lease.
-- Invariant: one terminal state, one last log entry, no entry left in the queue, both keys expire together.
local id, nonce = ARGV[1], ARGV[2]
local job = load_job(id)
if not job then return 'gone' end
if not held(id, nonce) then
  -- The reply to the first call was lost: it is done already.
  if job.nonce == nonce and job.state == TO[ARGV[3]] then return 'ok' end
  return job.state
end
local fields = {}
for i = 7, #ARGV do fields[#fields + 1] = ARGV[i] end
finish(id, job, ARGV[3], ARGV[4], tonumber(ARGV[5]), fields, ARGV[6])
return 'ok'
