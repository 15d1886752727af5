-- Watchers: the gateways that pass a job's frames on to clients.

local function is_watcher(watchers, gateway)
  return string.find(' ' .. watchers .. ' ', ' ' .. gateway .. ' ', 1, true) ~= nil
end

-- Whether a gateway that watches the job receives frames now.
local function is_attended(job)
  for gateway in string.gmatch(job.watchers, '%S+') do
    if redis.call('PUBSUB', NUMSUB, CHANNEL.tokens .. gateway)[2] > 0 then return true end
  end
  return false
end

-- Cancel a job after its `keep_ms`, unless it is watched before.
local function cancel_later(id, job, least_ms)
  local keep_ms = math.max(least_ms, tonumber(job.keep_ms))
  redis.call('ZADD', base .. WORD.unattended, 'NX', int(now_us() + keep_ms * 1000), id)
end

-- Take a gateway out of a job's watchers; returns the job's state. A job without a watcher is cancelled after
-- its `keep_ms`, unless it is watched again before. A job without that runs to its end: its watchers stay.
local function unwatch(id, job, gateway)
  if not FROM.cancel[job.state] or (job.keep_ms or '') == '' or not is_watcher(job.watchers, gateway) then
    return job.state
  end
  local left = {}
  for watcher in string.gmatch(job.watchers, '%S+') do
    if watcher ~= gateway then left[#left + 1] = watcher end
  end
  job.watchers = table.concat(left, ' ')
  redis.call('HSET', key('job', id), 'watchers', job.watchers)
  if job.watchers ~= '' then return job.state end
  if tonumber(job.keep_ms) == 0 then
    revoke(id, job, 'cancel', 'unattended')
    return TO.cancel
  end
  cancel_later(id, job, 0)
  return job.state
end
