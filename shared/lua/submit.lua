-- Make jobs and put each in its lane.
-- KEYS: base.  ARGV: msgpack of an array of jobs, a job being
--       {id, tenant, pool, lane, deadline in us from now (0: none), {field, value, ...}} with fields of
--       its hash; deepest queue.
-- Returns a flat array 'ok' | 'exists' | 'full', jobs waiting in the lane, ...
-- Invariant: a job is queued if and only if one undelivered entry carries its id.
local now, deepest = now_us(), tonumber(ARGV[2])
local verdicts, rung = {}, {}

local function submit(id, tenant, pool, lane, deadline, fields)
  local name = pool .. ':' .. lane
  local depth = redis.call('ZCARD', waiting_key(name))
  if redis.call('EXISTS', key('job', id)) == 1 then return 'exists', depth end
  if depth >= deepest then return 'full', depth end
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
  if not rung[pool] then redis.call('SADD', base .. WORD.pools, pool) end
  rung[pool] = true
  ring(pool)
  return 'ok', depth + 1
end

for _, job in ipairs(cmsgpack.unpack(ARGV[1])) do
  verdicts[#verdicts + 1], verdicts[#verdicts + 2] = submit(unpack(job))
end
return verdicts
