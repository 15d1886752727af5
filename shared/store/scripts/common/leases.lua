-- Which worker has which jobs: the pending entries of its consumer in the group of the pool's stream. All unfinished jobs of a pool are
-- in that stream, from submit to their end. How many a worker has is counted beside: XPENDING visits them all.
local GROUP = 'workers'
local LEASE_US = 2000000 -- of all jobs of a worker, from its last heartbeat, if that has told no other length
local LOOKS = 8 -- unfinished jobs that a tick looks at

local function stream(pool) return key('queue', pool) end

local function enter_queue(id, pool)
  defer('SADD', base .. 'pools', pool)
  return redis.call('XADD', stream(pool), '*', 'job', id)
end

local function leave_queue(pool, entry) defer('XDEL', stream(pool), entry) end

-- Give a worker these entries.
local function hold(pool, worker, entries)
  local command = {'XCLAIM', stream(pool), GROUP, worker, 0, unpack(entries)}
  command[#command + 1], command[#command + 2] = 'FORCE', 'JUSTID'
  local claimed = redis.pcall(unpack(command))
  if claimed.err then -- no group yet
    redis.call('XGROUP', 'CREATE', stream(pool), GROUP, '0', 'MKSTREAM')
    claimed = redis.call(unpack(command))
  end
  redis.call('HINCRBY', base .. 'held', worker, #claimed)
end

-- A worker has a job no more, from the end of the call on.
local function drop(pool, worker, entry)
  local name = pool .. ' ' .. worker
  local command = dropped[name] or {'XACK', stream(pool), GROUP, worker = worker}
  dropped[name], command[#command + 1] = command, entry
end

local function flush_drops()
  for _, command in pairs(dropped) do
    local count = redis.call(unpack(command))
    if count > 0 then redis.call('HINCRBY', base .. 'held', command.worker, -count) end
  end
  dropped = {}
end

local function count_held(worker) return tonumber(redis.call('HGET', base .. 'held', worker) or 0) end

local function recount(worker, count)
  if count > 0 then redis.call('HSET', base .. 'held', worker, count) else redis.call('HDEL', base .. 'held', worker) end
end

local function holds(job)
  local rows = redis.pcall('XPENDING', stream(job.pool), GROUP, job.entry, job.entry, 1, job.worker)
  return not rows.err and #rows == 1
end

-- At most so many jobs of a worker: {id, pool, entry}...
local function held_by(worker, most)
  local found = {}
  for _, pool in ipairs(redis.call('SMEMBERS', base .. 'pools')) do
    if #found >= most then break end
    local rows = redis.pcall('XPENDING', stream(pool), GROUP, '-', '+', most - #found, worker)
    for i = 1, rows.err and 0 or #rows do
      local entry = redis.call('XRANGE', stream(pool), rows[i][1], rows[i][1])[1]
      if entry then
        found[#found + 1] = {entry[2][2], pool, entry[1]}
      else
        drop(pool, worker, rows[i][1]) -- a person has deleted it
      end
    end
  end
  return found
end

-- Some unfinished jobs behind a place, {id, pool, entry}..., and the next place.
local function unfinished(place)
  local from_pool, from = string.match(place, '^(.*) (%S+)$')
  local pools, found = redis.call('SMEMBERS', base .. 'pools'), {}
  table.sort(pools)
  for _, pool in ipairs(pools) do
    if not from or pool >= from_pool then
      local rows = redis.call('XRANGE', stream(pool), pool == from_pool and '(' .. from or '-', '+', 'COUNT', LOOKS)
      for _, row in ipairs(rows) do found[#found + 1] = {row[2][2], pool, row[1]} end
      if #rows > 0 then return found, pool .. ' ' .. rows[#rows][1] end
    end
  end
  return found, ''
end

-- Leases count from now on if Redis itself stood still: no call of a worker or a tick came for a while. Connections have a while, too.
local PAUSE_US, PATIENCE_US = 1000000, 2000000
local function note_alive()
  local now = now_us()
  local paused = now - (tonumber(redis.call('GET', base .. 'alive') or '') or now)
  redis.call('SET', base .. 'alive', int(now))
  if paused <= PAUSE_US then return end
  redis.call('SET', base .. 'patient', int(now + PATIENCE_US))
  for _, worker in ipairs(redis.call('ZRANGE', base .. 'workers', 0, -1)) do
    redis.call('ZINCRBY', base .. 'workers', int(paused), worker)
  end
end

local function lease_us(worker) return tonumber(redis.call('HGET', base .. 'leases', worker) or '') or LEASE_US end
local function beat(worker) redis.call('ZADD', base .. 'workers', int(now_us() + lease_us(worker)), worker) end
