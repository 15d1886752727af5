-- The queues: one stream per pool and lane, with one consumer group. Streams of requeued jobs are read in their order; of
-- those of client lanes a worker gets the entries whose turn it is (turns.lua).
-- Further down: how idle workers are woken, and the free slots that they have advertised.

local function is_entry_id(entry) return string.match(entry, '^%d+%-%d+$') ~= nil end

local function leave_queue(job)
  -- Delivered or not. (The group's lag is not known for a while after an undelivered entry was deleted.
  -- Depths are counted by the `waiting` sets, which are exact.)
  if not is_entry_id(job.entry) then return end
  defer('XACK', queue_key(job.queue), job.entry)
  defer('XDEL', queue_key(job.queue), job.entry)
end

local function delete_entry(name, entry_id)
  redis.call('XACK', queue_key(name), GROUP, entry_id)
  redis.call('XDEL', queue_key(name), entry_id)
end

-- The id of the job that an entry names.
local function job_in(entry) return entry[2][2] end

-- Give a worker entries that are not the next ones of the stream.
local function hand_out(name, worker, entries)
  local command = {'XCLAIM', queue_key(name), GROUP, worker, 0, unpack(entries)}
  command[#command + 1], command[#command + 2] = 'FORCE', 'JUSTID'
  local reply = redis.pcall(unpack(command))
  if type(reply) == 'table' and reply.err then -- no group yet
    redis.call('XGROUP', 'CREATE', queue_key(name), GROUP, '0', 'MKSTREAM')
    redis.call(unpack(command))
  end
end

-- At most `count` entries of a lane of requeued jobs that no worker has been given yet; they are this worker's now.
local function read(name, worker, count)
  local stream = queue_key(name)
  local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', count, 'STREAMS', stream, '>')
  if reply and reply.err then -- no group yet: from the start of the stream, so that no entry is missed
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    reply = redis.call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', count, 'STREAMS', stream, '>')
  end
  return reply and reply[1] and reply[1][2] or {}
end

-- The lane in whose set a queued job waits: its request's, also while its entry is in the retry lane.
local function lane_waited_in(job)
  local suspects = suspects_of(job.pool)
  return job.queue == suspects and suspects or job.pool .. ':' .. job.lane
end

-- Keys of a pool's client lanes, by this function; only those exist that have members.
local function lane_keys(pool, key_of)
  local names = {}
  for i, lane in ipairs(CLIENT_LANES) do names[i] = key_of(pool .. ':' .. lane) end
  return names
end

-- Wake-ups: idle workers block on a list per pool; one element wakes one worker.
local MOST_WAKE_UPS = 64
local OWN_MS = 5000 -- a worker looks as often by itself (BLOCK_S in claim_connection.py)

local function wake_workers(pool, times)
  local list, elements = key('wake_ups', pool), {}
  for n = 1, math.min(times, MOST_WAKE_UPS - redis.call('LLEN', list)) do elements[n] = 1 end
  if #elements > 0 then redis.call('RPUSH', list, unpack(elements)) end
end

-- Wake this worker, if it waits for a wake-up, for jobs of a pool. If it has no free slot then it wakes another one.
local function wake_worker(pool, worker)
  local list = key('wake_ups', '@' .. worker)
  if redis.call('LLEN', list) == 0 then redis.call('RPUSH', list, pool) end
  redis.call('PEXPIRE', list, OWN_MS)
end

-- Advertised slots: free slots of workers that the next jobs are leased to as they are submitted.

-- A member of the sorted set `advertised`.
local function advertiser(worker, lease_ms) return worker .. ' ' .. lease_ms end

-- Its worker and lease in ms.
local function read_advertiser(member) return string.match(member, '^(%S+) (%d+)$') end

local function is_connected(worker)
  return redis.call('PUBSUB', NUMSUB, CHANNEL.control .. worker)[2] > 0
end

-- How many jobs were leased to a worker that had not reached it when it believed that `acknowledged` slots
-- were left of its last update; 0 if that is not known ('').
local function in_flight(pool, who, acknowledged)
  local left = acknowledged ~= '' and redis.call('ZSCORE', key('advertised', pool), who)
  return left and math.max(0, acknowledged - left) or 0
end

-- Jobs in flight are subtracted in advance; with more of them than slots the score is below zero.
local function advertise(pool, who, slots, n_in_flight)
  redis.call('ZADD', key('advertised', pool), slots - n_in_flight, who)
end
