-- Take all jobs from a worker that has lost its connection, and requeue or fail them.
-- KEYS: base
-- ARGV: worker, limit, lane...
--       limit: jobs per queue.
-- Reply: flat id, new state, ...
-- Invariant: nothing is taken from a worker that is subscribed to its control channel.
local worker, result = ARGV[1], {}
local function withdraw_slots(pool)
  for _, member in ipairs(call('ZRANGE', key('advertised', pool), 0, -1)) do
    if read_advertiser(pool, member) == worker then call('ZREM', key('advertised', pool), member) end
  end
end

if is_connected(worker) then return result end
for _, pool in ipairs(call('SMEMBERS', base .. WORD.pool_names)) do
  withdraw_slots(pool)
  for i = 3, #ARGV do
    local name = pool .. ':' .. ARGV[i]
    local stream = queue_key(name)
    local held_entries = redis.pcall('XPENDING', stream, GROUP, '-', '+', ARGV[2], worker)
    if not held_entries.err then
      for _, pending in ipairs(held_entries) do
        local entry = redis.call('XRANGE', stream, pending[1], pending[1])[1]
        local id = entry and job_in(entry)
        local job = id and load_job(id, TO_REQUEUE)
        if entry and not id then
          set_aside_entry(name, entry)
        elseif job and job.queue == name and job.entry == pending[1] and FROM.requeue[job.state] then
          result[#result + 1] = id
          result[#result + 1] = requeue_or_fail(id, job, 'worker_lost', true)
        else
          delete_entry(name, pending[1])
        end
      end
    end
  end
end
return result
