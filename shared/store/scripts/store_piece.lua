-- Store a piece of a job's answer, before the job ends. ARGV: id, generation of its holder, field of the record, piece
-- Reply: 1 if that worker has the job, else 0, and nothing was stored
local job = load_job(ARGV[1])
if not job or job.state ~= 'in_progress' or int(job.generation) ~= ARGV[2] then return 0 end
redis.call('HSET', key('job', ARGV[1]), ARGV[3], ARGV[4])
return 1
