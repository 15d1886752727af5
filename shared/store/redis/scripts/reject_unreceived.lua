-- Requeue the jobs that were leased to a worker and never reached it: it may have missed a message.
-- KEYS: base
-- ARGV: pool, worker, received, older_than_ms, lane...
--       received: msgpack array of the ids of all jobs that the worker holds; older_than_ms: shortest time
--       since the job was leased or renewed (a younger one may be on its way).
-- Reply: flat id, new state, ...
-- Invariant: a job that its worker has received stays with it.
local pool, worker, received, result = ARGV[1], ARGV[2], {}, {}
for _, id in ipairs(cmsgpack.unpack(ARGV[3])) do received[id] = true end
for i = 5, #ARGV do
  local name = pool .. ':' .. ARGV[i]
  local stream = queue_key(name)
  local given = redis.pcall('XPENDING', stream, GROUP, 'IDLE', ARGV[4], '-', '+', 1000, worker)
  if not given.err then
    for _, pending in ipairs(given) do
      local entry = redis.call('XRANGE', stream, pending[1], pending[1])[1]
      local id = entry and job_in(entry)
      local job = id and not received[id] and load_job(id, TO_REQUEUE)
      local is_own = job and job.worker == worker and FROM.requeue[job.state]
      if is_own and job.queue == name and job.entry == pending[1] then
        result[#result + 1] = id
        result[#result + 1] = requeue_or_fail(id, job, 'not_received', false)
      end
    end
  end
end
return result
