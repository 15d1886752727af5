-- Delete jobs that have ended, before they expire. ARGV: id...
-- Reply: how many were deleted; others are not there, or have not ended
local deleted = 0
for _, id in ipairs(ARGV) do
  local job = load_job(id)
  if job and ENDS[job.state] then
    -- Maintenance may be about to count its tokens there.
    if redis.call('HEXISTS', key('job', id), 'response') == 0 then
      redis.call('PEXPIRE', key('log', id), COUNTED_MS)
    else
      redis.call('UNLINK', key('log', id))
    end
    redis.call('UNLINK', key('job', id), key('body', id))
    defer('ZREM', key('jobs', job.tenant), id)
    defer('ZREM', base .. 'expiring', id .. ' ' .. job.tenant)
    count_kept(job.tenant, id, 0)
    deleted = deleted + 1
  end
end
return deleted
