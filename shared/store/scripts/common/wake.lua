-- At its end a call sends idle workers a message to claim waiting jobs: `idle:<pool>` has the workers' room. A worker with room is in
-- there, or is about to claim. Jobs without a message wait for the next claim; a worker may give back a flex job for a better lane.
local AWAY = 1000000 -- by so much the score of a worker is lower where it is not at home

-- Of workers with as much room the one whose last claim is longest ago is next, by a fraction that decreases for 1,000 s.
local function note_idle(pool, worker, room, is_home)
  redis.call('ZADD', key('idle', pool), room + 0.999 - now_us() % 1e9 / 1.01e9 - (is_home and 0 or AWAY), worker)
end

-- Idle workers that are at home, and the others, most room first in both lists: {worker, room}...
local function idle_workers(pool)
  local flat, home, away = redis.call('ZREVRANGE', key('idle', pool), 0, 63, 'WITHSCORES'), {}, {}
  for i = 1, #flat, 2 do
    local room = math.floor(flat[i + 1])
    if room >= 0 then home[#home + 1] = {flat[i], room} else away[#away + 1] = {flat[i], room + AWAY} end
  end
  return {home, away}
end

-- One more job waits in a pool.
local function wake_for(pool, lane)
  woken[pool] = (woken[pool] or 0) + 1
  if lane ~= LANES[#LANES] then urgent[pool] = (urgent[pool] or 0) + 1 end
end

local function count_told(pool, worker) return warm[pool] and warm[pool][worker] or 0 end

-- Tell a worker of a job for which it is warm.
local function tell_warm(pool, worker)
  warm[pool] = warm[pool] or {}
  warm[pool][worker] = count_told(pool, worker) + 1
end

-- The idle worker with this room at least that is warm for these prefixes, and worth it; nil if there is none.
local function idle_warm(pool, prefixes, least)
  local idle, best, most_blocks = key('idle', pool), nil, 0
  local most = math.floor(redis.call('ZREVRANGE', idle, 0, 0, 'WITHSCORES')[2] or -1)
  for worker, blocks in pairs(most >= least and warm_of(pool, prefixes) or {}) do
    local room = math.floor(redis.call('ZSCORE', idle, worker) or -1)
    if room >= least and blocks > most_blocks and prefers(blocks, room, count_held(worker) + count_told(pool, worker), most) then
      best, most_blocks = worker, blocks
    end
  end
  return best
end

-- One more job waits for which an idle worker may be warm. Returns whether there is such a worker.
local function wake_warm(pool, prefixes)
  local worker = idle_warm(pool, prefixes, 1)
  if not worker then return false end
  redis.call('ZINCRBY', key('idle', pool), -1, worker)
  tell_warm(pool, worker)
  return true
end

-- Send idle workers messages to claim `count` jobs: those at home first, then most room first. Returns for how many jobs no worker got
-- a message.
local function wake_idle(pool, count)
  local lost = false
  for _, idle in ipairs(idle_workers(pool)) do
    local level, n, total = -1, 0, 0
    while n < #idle and level < idle[n + 1][2] do
      n, total = n + 1, total + idle[n + 1][2]
      level = math.max(0, (total - count) / n)
    end
    for i = 1, n do
      local worker, share = idle[i][1], math.min(count, math.ceil(idle[i][2] - level))
      if share > 0 then
        if control(worker, CONTROL.claim, share) then
          redis.call('ZINCRBY', key('idle', pool), -share, worker)
          count = count - share
        else
          redis.call('ZREM', key('idle', pool), worker)
          lost = true
        end
      end
    end
  end
  return lost and wake_idle(pool, count) or count
end

-- Have workers hand over so many jobs of the lane flex: `yields:<pool>` has how many each would.
local function ask_to_yield(pool, count)
  while count > 0 do
    local worker, most = unpack(redis.call('ZREVRANGE', key('yields', pool), 0, 0, 'WITHSCORES'))
    if not worker then return end
    local share = math.min(count, tonumber(most))
    local received = share > 0 and control(worker, CONTROL.yield, share)
    if received then count = count - share end
    if received and share < tonumber(most) then
      redis.call('ZINCRBY', key('yields', pool), -share, worker)
    else
      redis.call('ZREM', key('yields', pool), worker)
    end
  end
end

local function wake_workers()
  for pool, workers in pairs(warm) do
    for worker, count in pairs(workers) do
      if not control(worker, CONTROL.claim, count) then
        redis.call('ZREM', key('idle', pool), worker)
        woken[pool] = (woken[pool] or 0) + count
      end
    end
  end
  for pool, count in pairs(woken) do
    local left = wake_idle(pool, count)
    if left > 0 and urgent[pool] then ask_to_yield(pool, math.min(left, urgent[pool])) end
  end
end

local function finish_call()
  flush_writes()
  flush_drops()
  flush_kept()
  wake_workers()
  publish_frames()
  for worker, ids in pairs(hints) do control(worker, CONTROL.lost, unpack(ids)) end
end
