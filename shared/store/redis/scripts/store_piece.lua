-- Store a piece of a job's answer, before the job ends.
-- KEYS: base
-- ARGV: id, lease_id, field, piece
--       field: of the job's record
-- Reply: 1 if the worker holds the job, else 0, and nothing was stored
local id = ARGV[1]
local job = load_job(id, {})
if not job or not held(job, ARGV[2]) then return 0 end
redis.call('HSET', key('job', id), ARGV[3], ARGV[4])
return 1
