-- Leases and fencing tokens.
-- A worker may write if the token that it presents is the one in Redis: scripts that change a job that a
-- worker holds delete it (`invalidate_fence`), so the worker has to renew before it writes again.
local function fence_token_of(worker) return redis.call('GET', key('fence', worker)) or '' end
local function is_fence_valid(worker, fence_token) return fence_token_of(worker) == fence_token and fence_token ~= '' end

local function next_lease_id(seed)
  lease_ids = lease_ids + 1
  return seed .. string.format('%04x', lease_ids)
end

-- Whether a queued job may be leased: not if its deadline has passed. It leaves the waiting jobs.
local function may_start(id, job)
  local deadline = tonumber(job.deadline_us) or 0
  if deadline > 0 and deadline <= now_us() then
    finish_without_result(id, job, 'expire', deadline_code(job), {})
    return false
  end
  defer('ZREM', waiting_key(lane_waited_in(job)), id)
  return true
end

-- The job that an entry just read leads to: id and job if it may be leased, else nil.
local function leasable(name, entry)
  local id = job_in(entry)
  local job = load_job(id, TO_LEASE)
  local is_its_entry = job and job.queue == name and job.entry == entry[1]
  if is_its_entry and not FROM.acquire[job.state] and FROM.requeue[job.state] then
    -- The group was made anew while a worker holds the job: the entry stays, for the reaper to find.
    return nil
  end
  if not is_its_entry or not FROM.acquire[job.state] then
    delete_entry(name, entry[1])
    return nil
  end
  if may_start(id, job) then return id, job end
end

-- Lease a job whose entry the worker has. `now` is decimal digits; `fields` go into the job's record as well; `charged`:
-- what its tenant was charged for it; `known`: how many leading blocks of its prompt the worker may hold, nil: not looked up.
-- Returns what the worker gets (acquire.py).
local function lease(id, job, worker, lease_ms, lease_id, now, fields, charged, known)
  local attempts, generation = job.attempts + 1, job.generation + 1
  local from_seq = generation == 1 and 0 or next_seq(id) - 1
  redis.call('HSET', key('job', id), 'state', TO.acquire,
             'lease', cmsgpack.pack({worker, lease_id, generation, attempts, lease_ms, now, from_seq}), unpack(fields))
  if job.prefixes ~= '' then
    local member = advertiser(worker, lease_ms)
    known = known or warm_of(job.pool, job.prefixes)[member] or 0
    note_warm(job.pool, member, job.prefixes)
    redis.call('HDEL', key('waiting_prefixes', job.pool), id)
  end
  if generation == 1 and (job.queue_ms ~= '' or job.run_ms ~= '') then start_run_deadline(id, job, now) end
  if job.watched == '1' then publish(job.watchers, cmsgpack.pack({id, 0, generation, KIND.started, '', worker})) end
  return {id, lease_id, generation, attempts, job.created_us, job.stream, job.endpoint, job.body, job.watchers, job.watched,
          job.origin, job.tenant, job.lane, job.weight, charged and tostring(charged) or '',
          (job.run_ms ~= '' or job.total_ms ~= '') and '1' or '', known}
end
