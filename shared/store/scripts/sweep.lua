-- Take off what has expired: entries of lists, and bytes of tenants (kept.lua); of the stream `ended` what is too much, where no
-- maintenance process reads it.
-- ARGV: limit, most_ended
--       limit: of what has expired, per call; most_ended: entries of the stream.
-- Reply: how many were looked at, at most `limit`: if as many, there may be more
-- Invariant: what is there, or is there again, stays in its list. Of a tenant that has nothing no bytes are left.
local LISTS = {job = 'jobs', conversation = 'conversations', batch = 'batches'}
local KEPT_MS = 3600000 -- a key without end is looked at again after this time
local expiring = base .. 'expiring'
local due = redis.call('ZRANGEBYSCORE', expiring, '-inf', int(now_us()), 'LIMIT', 0, ARGV[1])
for _, member in ipairs(due) do
  local name, bytes, tenant = string.match(member, '^(%S+) (%d+) (.*)$')
  local kind, id = string.match(name, '^(%a+):(.*)$')
  local left_ms = redis.call('PTTL', base .. name)
  if left_ms == -1 and kind ~= 'job' then left_ms = KEPT_MS end -- a job with the same id has not ended yet
  if left_ms > 0 then -- it has been used since
    redis.call('ZADD', expiring, int(now_us() + left_ms * 1000), member)
  else
    if left_ms == -2 and LISTS[kind] then redis.call('ZREM', key(LISTS[kind], tenant), id) end
    redis.call('ZREM', expiring, member)
    keep(tenant, -bytes)
  end
end
for tenant in pairs(counted) do
  local files, webhooks = key('document_index', 'file:' .. tenant), key('document_index', 'webhook:' .. tenant)
  if redis.call('EXISTS', key('jobs', tenant), key('conversations', tenant), key('batches', tenant), files, webhooks) == 0 then
    counted[tenant] = -(redis.call('HGET', base .. 'kept', tenant) or 0)
  end
end
local dropped = redis.call('XTRIM', base .. 'ended', 'MAXLEN', '~', ARGV[2])
if dropped > 0 then redis.call('INCRBY', base .. 'ended_dropped', dropped) end
return #due
