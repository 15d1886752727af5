-- Watchers: the gateways that pass a job's frames on to clients.

local function is_watcher(watchers, gateway)
  return string.find(' ' .. watchers .. ' ', ' ' .. gateway .. ' ', 1, true) ~= nil
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
  redis.call('ZADD', base .. WORD.unattended, int(now_us() + job.keep_ms * 1000), id)
  return job.state
end
