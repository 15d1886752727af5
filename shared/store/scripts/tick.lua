-- Requeue the jobs of lost workers, expire jobs past their deadline, cancel jobs without a watcher, requeue jobs that are in no list.
-- Several processes may call it, about seven times a second.
-- Reply: {1 if more is due: at most MOST jobs are taken away in one call, workers that were lost,
-- flat id, new state, ... of those jobs}
-- A worker is lost if its lease has run out, or its control channel has had no subscriber for UNHEARD_US; for longer after Redis has
-- stood still, and when most workers have lost their connections at once.
local UNHEARD_US, AT_ONCE_US = 100000, 300000
note_alive()
local now, left, reply = now_us(), MOST, {0, {}}
local is_patient = (tonumber(redis.call('GET', base .. 'patient') or '') or 0) > now

local function note(id, state)
  if state then reply[#reply + 1], reply[#reply + 2] = id, state end
  left = left - 1
end

-- A script that failed halfway, or a person, may have removed a job from the list that it belongs to.
local function look_at(id, pool, entry)
  local job = load_job(id)
  if not job or ENDS[job.state] or job.entry ~= entry then
    leave_queue(pool, entry)
  elseif job.state == 'in_progress' then
    if not (holds(job) and redis.call('ZSCORE', base .. 'workers', job.worker)) then note(id, take(id, job, 'requeued', 'worker_lost')) end
  elseif not is_in_line(id, job) then
    enter_line(id, job)
    wake_for(job.pool, job.lane)
  end
end

-- Returns false if there are more jobs than this call may take.
local function lose(worker)
  for _, held in ipairs(held_by(worker, left)) do note(held[1], take_back(held, worker, 'requeued', 'worker_lost')) end
  if left <= 0 then return false end
  flush_drops()
  recount(worker, 0)
  redis.call('ZREM', base .. 'workers', worker)
  redis.call('ZREM', base .. 'unheard', worker)
  redis.call('HDEL', base .. 'leases', worker)
  redis.call('DEL', key('followed', worker))
  table.insert(reply[2], worker)
  for _, pool in ipairs(redis.call('SMEMBERS', base .. 'pools')) do
    redis.call('ZREM', key('idle', pool), worker)
    redis.call('ZREM', key('yields', pool), worker)
    redis.pcall('XGROUP', 'DELCONSUMER', stream(pool), GROUP, worker)
  end
  return true
end

-- Workers whose connections are lost, and since when; and how many were lost in each AT_ONCE_US.
local function unheard_workers(workers)
  local unheard, counts = {}, {}
  for _, worker in ipairs(workers) do
    if is_heard(worker) then
      redis.call('ZREM', base .. 'unheard', worker)
    else
      redis.call('ZADD', base .. 'unheard', 'NX', int(now), worker)
      local since = tonumber(redis.call('ZSCORE', base .. 'unheard', worker))
      local span = math.floor(since / AT_ONCE_US)
      unheard[worker], counts[span] = since, (counts[span] or 0) + 1
    end
  end
  return unheard, counts
end

local workers = redis.call('ZRANGE', base .. 'workers', 0, -1)
local unheard, counts = unheard_workers(workers)

-- How long a worker may be without a connection that is lost since then. Those that are lost one after the other are no reason to wait.
local function silence_us(since)
  local span = math.floor(since / AT_ONCE_US)
  local at_once = (counts[span - 1] or 0) + (counts[span] or 0) + (counts[span + 1] or 0)
  return (is_patient or 2 * at_once > #workers) and PATIENCE_US or UNHEARD_US
end

for _, worker in ipairs(workers) do
  local lease_end, since = tonumber(redis.call('ZSCORE', base .. 'workers', worker)), unheard[worker]
  if lease_end > now + lease_us(worker) then beat(worker) end -- the clock went back
  if lease_end < now or since and now - since > silence_us(since) then
    if not lose(worker) then
      reply[1] = 1
      return reply
    end
  end
end
flush_writes()
for _, id in ipairs(redis.call('ZRANGE', base .. 'deadlines', '-inf', int(now), 'BYSCORE', 'LIMIT', 0, left)) do
  local job = load_job(id)
  local state = job and take(id, job, 'expired', deadline_code(job))
  if not state then redis.call('ZREM', base .. 'deadlines', id) end
  note(id, state)
end
for _, id in ipairs(redis.call('ZRANGE', base .. 'unattended', '-inf', int(now), 'BYSCORE', 'LIMIT', 0, left)) do
  local job = load_job(id)
  redis.call('ZREM', base .. 'unattended', id)
  note(id, job and job.watchers == '' and take(id, job, 'cancelled', 'unattended'))
end
if left <= 0 then
  reply[1] = 1
  return reply
end
flush_writes()
local found, place = unfinished(redis.call('GET', base .. 'place') or '')
for _, each in ipairs(found) do look_at(unpack(each)) end
redis.call('SET', base .. 'place', place)
return reply
