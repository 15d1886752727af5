-- Make jobs and put each in its lane.
-- KEYS: base.  ARGV: msgpack of an array of jobs, a job being
--       {id, tenant, pool, lane, deadline in us from now (0: none), {field, value, ...}} with fields of
--       its hash; deepest queue.
-- Returns a flat array 'ok' | 'exists' | 'full', jobs waiting in the lane, ...
-- Invariant: a job is queued if and only if one undelivered entry carries its id.
local start_us, deepest = now_us(), tonumber(ARGV[2])
local verdicts, depths, rings = {}, {}, {}

local function submit(now, id, tenant, pool, lane, deadline, fields)
  local name = pool .. ':' .. lane
  local depth = depths[name] or redis.call('ZCARD', waiting_key(name))
  depths[name] = depth
  if redis.call('EXISTS', key('job', id)) == 1 then return 'exists', depth end
  if depth >= deepest then return 'full', depth end
  if deadline > 0 then
    fields[#fields + 1] = 'deadline_us'
    fields[#fields + 1] = int(now + deadline)
    later('ZADD', base .. WORD.deadlines, int(now + deadline), id)
  end
  local entry = redis.call('XADD', queue_key(name), '*', 'job', id)
  redis.call('HSET', key('job', id), 'state', 'queued', 'pool', pool, 'lane', lane, 'tenant', tenant,
             'queue', name, 'entry', entry, 'attempts', 0, 'created_us', int(now), unpack(fields))
  later('ZADD', waiting_key(name), int(now), id)
  later('ZADD', key('jobs', tenant), int(now), id)
  depths[name] = depth + 1
  rings[pool] = (rings[pool] or 0) + 1
  return 'ok', depth + 1
end

for n, job in ipairs(cmsgpack.unpack(ARGV[1])) do
  -- A microsecond apart: jobs of one call keep their order and have positions of their own.
  verdicts[2 * n - 1], verdicts[2 * n] = submit(start_us + n - 1, unpack(job))
end
write_down()
for pool, times in pairs(rings) do
  redis.call('SADD', base .. WORD.pools, pool)
  ring(pool, times)
end
return verdicts
