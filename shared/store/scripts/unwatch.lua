-- A gateway has no client any more that follows this job. ARGV: id, gateway
local job = load_job(ARGV[1])
if job then unwatch(ARGV[1], job, ARGV[2]) end
return redis.status_reply('OK')
