-- Delete a job that has ended, or a conversation with its items, before it expires.
-- KEYS: base
-- ARGV: id
-- Reply: 1 if it was deleted, 0 if there is none, or the job has not ended
local id = ARGV[1]
if is_conversation(id) then
  local tenant = call('HGET', key('conversation', id), 'tenant')
  if not tenant then return 0 end
  redis.call('UNLINK', unpack(conversation_keys(id)))
  call('ZREM', key('conversations', tenant), id)
  count_kept(tenant, id, 0)
  return 1
end
local job = load_job(id, {})
if not job or FROM.cancel[job.state] then return 0 end
redis.call('UNLINK', key('job', id), key('log', id))
if job.tenant then call('ZREM', key('jobs', job.tenant), id) end
count_kept(job.tenant, id, 0)
return 1
