-- Take the jobs behind pending entries of a queue (replies of XPENDING) from their workers, if is_lost(job, pending)
-- is true; requeue or fail them. An entry without a job is set aside, one whose job has left the queue is deleted.
-- Adds to `result`: id, new state, ...
local function take_back(name, pending_entries, is_lost, result)
  for _, pending in ipairs(pending_entries) do
    local entry = redis.call('XRANGE', queue_key(name), pending[1], pending[1])[1]
    local id = entry and job_in(entry)
    local job = id and load_job(id, TO_REQUEUE)
    if entry and not id then
      set_aside_entry(name, entry)
    elseif not (job and job.queue == name and job.entry == pending[1] and FROM.requeue[job.state]) then
      delete_entry(name, pending[1])
    elseif is_lost(job, pending) then
      call('ZREM', key('advertised', job.pool), advertiser(job.worker, job.lease_ms))
      result[#result + 1] = id
      result[#result + 1] = requeue_or_fail(id, job, 'worker_lost', true)
    end
  end
end
