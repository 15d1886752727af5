-- Advertised slots: free slots of workers that the next jobs are leased to as they are submitted.

-- A member of the sorted set `advertised`.
local function advertiser(worker, lease_ms) return worker .. ' ' .. lease_ms end

-- Its worker and lease in ms. A member that can't be read is set aside.
local function read_advertiser(pool, member)
  local worker, lease_ms = string.match(member, '^(%S+) (%d+)$')
  if not worker then
    dead_letter('member', key('advertised', pool), 'no worker and lease', {member = member})
    redis.call('ZREM', key('advertised', pool), member)
  end
  return worker, lease_ms
end

local function is_connected(worker)
  return redis.call('PUBSUB', NUMSUB, CHANNEL.control .. worker)[2] > 0
end

-- How many jobs were leased to a worker that had not reached it when it believed that `acknowledged` slots
-- were left of its last update; 0 if that is not known ('').
local function in_flight(pool, who, acknowledged)
  local left = acknowledged ~= '' and call('ZSCORE', key('advertised', pool), who)
  return left and math.max(0, acknowledged - left) or 0
end

-- Jobs in flight are subtracted in advance; with more of them than slots the score is below zero.
local function advertise(pool, who, slots, n_in_flight)
  call('ZADD', key('advertised', pool), slots - n_in_flight, who)
end
