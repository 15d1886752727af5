-- Keys of one shard, and Redis' clock.
-- loader.py puts these tables in front: WORD and CHANNEL (keys.py), PUBLISH and NUMSUB (channels.py), GROUP, RETRY_LANE, SUSPECT_LANE,
-- SUSPECT_FROM, CLIENT_LANES, IS_CLIENT_LANE (lanes.py), ADAPTER_MARK (adapter_queues.py), STATE, FROM and TO (states.py: event -> states it is allowed in, event -> state it leads to),
-- KIND and CONTROL (frames.py), STEPS (step_log.py),
-- DEPTHS and PLACEMENT (placement.py), REQUEST, REQUEST_LEAST (those that each has) and LEASE (record.py: names of fields).
-- The common parts run once, when the scripts are loaded (Redis offers no ipairs, string... then);
-- `begin` runs before each call.
-- Every script checks first and writes last, and may be repeated: a call whose reply was lost is sent again.

local base -- KEYS[1]: what all keys of the shard begin with; they share its hash tag
local read_us -- the time of this call

local function key(word, id) return base .. WORD[word] .. ':' .. id end
local function queue_key(name) return base .. WORD.queue .. ':' .. name end
local function waiting_key(name) return base .. WORD.waiting .. ':' .. name end
-- The pool of an adapter queue; of a pool itself.
local function pool_of(queue) return string.match(queue, '^[^' .. ADAPTER_MARK .. ']*') end
-- One worker of the pool runs the suspects of all its queues.
local function suspects_of(pool) return pool_of(pool) .. ':' .. SUSPECT_LANE end

-- Microseconds by Redis' clock: clocks of two machines are never compared.
local function now_us()
  if not read_us then
    local t = redis.call('TIME')
    read_us = t[1] * 1000000 + t[2]
  end
  return read_us
end
local function int(x) return string.format('%d', x) end
