-- Begin to store a large body, in pieces, whose job is submitted when all are there.
-- ARGV: id, tenant, bytes, ttl_ms, room (4)
--       ttl_ms: without a job it is kept for so long
-- Reply: 1; 0 if the job is there already, or the tenant may not keep so much: `submit` tells which
local id, tenant, bytes = ARGV[1], ARGV[2], cost(ARGV[3])
local name = 'body:' .. id
local expiring, member = base .. 'expiring', expiring_member(name, bytes, tenant)
if redis.call('EXISTS', key('job', id)) == 1 then return 0 end
if not redis.call('ZSCORE', expiring, member) then
  if too_much(tenant, bytes, room_of(unpack(ARGV, 5, 8))) then return 0 end
  keep(tenant, bytes)
end
redis.call('ZADD', expiring, int(now_us() + ARGV[4] * 1000), member)
redis.call('HSET', base .. name, 0, '')
return redis.call('PEXPIRE', base .. name, ARGV[4])
