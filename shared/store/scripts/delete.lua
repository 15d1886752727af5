-- Delete jobs that have ended, or conversations with their items, before they expire. ARGV: id...
-- Reply: how many were deleted; others are not there, or have not ended
local function delete_conversation(id)
  local tenant, kept = unpack(redis.call('HMGET', key('conversation', id), 'tenant', 'kept'))
  if not tenant then return 0 end
  redis.call('UNLINK', unpack(conversation_keys(id)))
  redis.call('ZREM', key('conversations', tenant), id)
  count_anew('conversation:' .. id, tenant, tonumber(kept) or 0, 0)
  return 1
end

local function delete_job(id)
  local job = load_job(id)
  if not job or not ENDS[job.state] then return 0 end
  local response, name = unpack(redis.call('HMGET', key('job', id), 'response', 'idempotency'))
  local log, left = key('log', id), 0
  if response then
    redis.call('UNLINK', log)
  elseif redis.call('PEXPIRE', log, COUNTED_MS) == 1 then -- maintenance may be about to count its tokens there (ended.lua)
    left = redis.call('MEMORY', 'USAGE', log)
  end
  if name then drop_key(id, key('idempotency', name)) end
  redis.call('UNLINK', key('job', id), key('body', id))
  defer('ZREM', key('jobs', job.tenant), id)
  local kept = tonumber(job.kept) or 0
  defer('ZREM', base .. 'expiring', expiring_member('job:' .. id, kept, job.tenant))
  if left > 0 then defer('ZADD', base .. 'expiring', int(now_us() + COUNTED_MS * 1000), expiring_member('log:' .. id, left, job.tenant)) end
  keep(job.tenant, left - kept)
  return 1
end

local deleted = 0
for _, id in ipairs(ARGV) do
  deleted = deleted + (is_conversation(id) and delete_conversation(id) or delete_job(id))
end
return deleted
