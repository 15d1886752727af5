-- A worker that may have missed a message hands back the jobs that were given to it and it does not know.
-- KEYS: base.  ARGV: pool, worker, msgpack of an array of the ids that it knows, shortest time since the
--       job was given or renewed in ms (a younger one may be on its way), then the lanes.
-- Returns a flat array id, new state, ...
-- Invariant: a job that its worker knows stays with it.
local pool, worker, known, result = ARGV[1], ARGV[2], {}, {}
for _, id in ipairs(cmsgpack.unpack(ARGV[3])) do known[id] = true end
for i = 5, #ARGV do
  local name = pool .. ':' .. ARGV[i]
  local stream = queue_key(name)
  local given = redis.pcall('XPENDING', stream, GROUP, 'IDLE', ARGV[4], '-', '+', 1000, worker)
  if not given.err then
    for _, pending in ipairs(given) do
      local entry = redis.call('XRANGE', stream, pending[1], pending[1])[1]
      local id = entry and entry[2][2]
      local job = id and not known[id] and load_job(id, TO_TAKE_BACK)
      if job and job.queue == name and job.entry == pending[1] and FROM.requeue[job.state] then
        result[#result + 1] = id
        result[#result + 1] = give_back(id, job, 'not_received', false)
      end
    end
  end
end
return result
