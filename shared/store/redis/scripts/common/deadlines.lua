-- Deadlines by Redis' clock. `deadline_us` of a job is the one that applies now: until its first start its queue
-- deadline, from then on its run deadline, or the deadline for the whole job where that is earlier.

-- The first start of a job, at `now`. Later ones change nothing: a run deadline counts from the first.
local function start_run_deadline(id, job, now)
  local due = math.huge
  if job.run_ms ~= '' then due = now + job.run_ms * 1000 end
  if job.total_ms ~= '' then due = math.min(due, job.created_us + job.total_ms * 1000) end
  if due == math.huge then
    redis.call('HDEL', key('job', id), 'deadline_us')
    defer('ZREM', base .. WORD.deadlines, id)
  else
    redis.call('HSET', key('job', id), 'deadline_us', int(due))
    defer('ZADD', base .. WORD.deadlines, int(due), id)
  end
end

-- Which deadline of a job has passed, as its error code.
local function deadline_code(job)
  local function is_over(ms) return ms ~= '' and job.created_us + ms * 1000 <= now_us() end
  if job.generation == 0 and is_over(job.queue_ms) then return 'queue_deadline_exceeded' end
  if job.run_ms ~= '' and not is_over(job.total_ms) then return 'run_deadline_exceeded' end
  return 'deadline_exceeded'
end
