-- At its end a call sends idle workers a message to claim waiting jobs: `idle:<pool>` has the workers' room. A worker with room is in
-- there, or is about to claim. Jobs without a message wait for the next claim; a worker may give back a flex job for a better lane.

-- A fraction behind the room, another one with each claim, spreads jobs over workers with as much room.
local function note_idle(pool, worker, room) redis.call('ZADD', key('idle', pool), room + now_us() % 1000 / 2000, worker) end

-- Idle workers, most room first: {worker, room}...
local function idle_workers(pool)
  local flat, found = redis.call('ZREVRANGE', key('idle', pool), 0, 63, 'WITHSCORES'), {}
  for i = 1, #flat, 2 do found[#found + 1] = {flat[i], math.floor(flat[i + 1])} end
  return found
end

-- One more job waits in a pool.
local function wake_for(pool, lane)
  woken[pool] = (woken[pool] or 0) + 1
  if lane ~= LANES[#LANES] then urgent[pool] = (urgent[pool] or 0) + 1 end
end

-- One more job waits for which this idle worker is warm. Returns whether there is such a worker.
local function wake_warm(pool, prefixes)
  local idle, best, most_blocks = key('idle', pool), nil, 0
  local most = math.floor(redis.call('ZREVRANGE', idle, 0, 0, 'WITHSCORES')[2] or 0)
  for worker, blocks in pairs(most >= 1 and warm_of(pool, prefixes) or {}) do
    local room = math.floor(redis.call('ZSCORE', idle, worker) or 0)
    if room >= 1 and blocks > most_blocks and prefers(blocks, room, most) then best, most_blocks = worker, blocks end
  end
  if not best then return false end
  redis.call('ZINCRBY', idle, -1, best)
  warm[pool] = warm[pool] or {}
  warm[pool][best] = (warm[pool][best] or 0) + 1
  return true
end

-- Send idle workers messages to claim `count` jobs, most room first. Returns for how many jobs no worker got a message.
local function wake_idle(pool, count)
  local idle = idle_workers(pool)
  local level, n, total, lost = -1, 0, 0, false
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
  wake_workers()
  publish_frames()
  for worker, ids in pairs(hints) do control(worker, CONTROL.lost, unpack(ids)) end
end
