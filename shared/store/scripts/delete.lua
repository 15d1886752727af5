-- Delete jobs that have ended, or conversations with their items, before they expire. ARGV: id...
-- Reply: how many were deleted; others are not there, or have not ended
local function delete_conversation(id)
  local tenant = redis.call('HGET', key('conversation', id), 'tenant')
  if not tenant then return 0 end
  redis.call('UNLINK', unpack(conversation_keys(id)))
  redis.call('ZREM', key('conversations', tenant), id)
  count_kept(tenant, id, 0)
  return 1
end

local function delete_job(id)
  local job = load_job(id)
  if not job or not ENDS[job.state] then return 0 end
  -- Maintenance may be about to count its tokens there (ended.lua).
  if redis.call('HEXISTS', key('job', id), 'response') == 0 then
    redis.call('PEXPIRE', key('log', id), COUNTED_MS)
  else
    redis.call('UNLINK', key('log', id))
  end
  redis.call('UNLINK', key('job', id), key('body', id))
  defer('ZREM', key('jobs', job.tenant), id)
  defer('ZREM', base .. 'expiring', id .. ' ' .. job.tenant)
  count_kept(job.tenant, id, 0)
  return 1
end

local deleted = 0
for _, id in ipairs(ARGV) do
  deleted = deleted + (is_conversation(id) and delete_conversation(id) or delete_job(id))
end
return deleted
