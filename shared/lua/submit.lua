-- Make a job and put it in its lane.
-- KEYS: base.  ARGV: id, tenant, pool, lane, deadline in us from now (0: none), deepest queue,
--       then field, value, ... for the job's hash.
-- Returns {'ok' | 'exists' | 'full', jobs waiting in the lane}.
-- Invariant: a job is queued if and only if one undelivered entry carries its id.
local id, tenant, pool, lane = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local name = pool .. ':' .. lane
local depth = redis.call('ZCARD', waiting_key(name))
if redis.call('EXISTS', key('job', id)) == 1 then return {'exists', depth} end
if depth >= tonumber(ARGV[6]) then return {'full', depth} end

local now = now_us()
local fields = {}
for i = 7, #ARGV do fields[#fields + 1] = ARGV[i] end
local deadline = tonumber(ARGV[5])
if deadline > 0 then
  fields[#fields + 1] = 'deadline_us'
  fields[#fields + 1] = int(now + deadline)
  redis.call('ZADD', base .. WORD.deadlines, int(now + deadline), id)
end
local entry = redis.call('XADD', queue_key(name), '*', 'job', id)
redis.call('HSET', key('job', id), 'state', 'queued', 'pool', pool, 'lane', lane, 'tenant', tenant,
           'queue', name, 'entry', entry, 'attempts', 0, 'created_us', int(now), unpack(fields))
redis.call('ZADD', waiting_key(name), int(now), id)
redis.call('ZADD', key('jobs', tenant), int(now), id)
redis.call('SADD', base .. WORD.pools, pool)
ring(pool)
return {'ok', depth + 1}
