-- Watchers: the gateways that pass a job's frames on to clients. The reply to a worker's next emit
-- has the jobs whose watchers have changed: `followed:<worker>` lists them, scored by the number of the change.

local function is_watcher(watchers, gateway) return string.find(' ' .. watchers .. ' ', ' ' .. gateway .. ' ', 1, true) ~= nil end

local function note_followers(id, job)
  if job.worker == '' then return end
  local followed = key('followed', job.worker)
  redis.call('ZADD', followed, redis.call('INCR', base .. 'follows'), id)
end

-- A gateway has no client any more that follows this job. A job without a watcher is cancelled after its `keep_ms`, unless it is watched
-- again before. A job without that runs to its end.
local function unwatch(id, job, gateway)
  if ENDS[job.state] or not is_watcher(job.watchers, gateway) then return end
  local left = {}
  for watcher in string.gmatch(job.watchers, '%S+') do
    if watcher ~= gateway then left[#left + 1] = watcher end
  end
  job.watchers = table.concat(left, ' ')
  redis.call('HSET', key('job', id), 'watchers', job.watchers)
  if #left == 0 and tonumber(job.keep_ms) == 0 then return take(id, job, 'cancelled', 'unattended') end
  note_followers(id, job)
  if #left == 0 and job.keep_ms ~= '' then redis.call('ZADD', base .. 'unattended', int(now_us() + job.keep_ms * 1000), id) end
end
