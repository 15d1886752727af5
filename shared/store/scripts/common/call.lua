-- One call of a script: its keys, Redis' clock, the writes that wait for its end, and what it publishes.
-- scripts.py puts these in front: SHARDED (a cluster: channels lie in the slot of the shard), PUBLISH and NUMSUB, LANES (best first),
-- REQUEST (names of the fields of a packed request, record.py), PIECE_BYTES (of large bodies), DEPTHS and PLACEMENT (rules.py).
-- These parts run once, when the library is loaded; `begin` runs before each call, `finish_call` behind it. Every script may be
-- repeated: a call whose reply was lost is sent again. None may fail halfway on what a client, a worker or a lost write of Redis can
-- bring about: what can't be read is failed or skipped.

local ENDS = {completed = true, failed = true, cancelled = true, expired = true}
local MOST = 200 -- jobs that one call takes away, or looks at in vain
local CONTROL = {claim = 0, yield = 1, lost = 2} -- of messages to a worker (queue.py)

local base, channels -- what all keys of the shard, and all channels, begin with
local time -- microseconds by Redis' clock: the clocks of two machines are never compared
local deferred, queued -- writes that wait for the end of the call
local messages -- gateway -> frames
local dropped -- what workers have no more (leases.lua)
local woken, warm, urgent -- jobs that idle workers are told of (wake.lua)
local counted, accepted, kept_before -- bytes of tenants: what this call adds, and of these new ones; what it has read (kept.lua)
local hints -- worker -> flat id, generation of jobs that were taken away from it

local function begin(keys)
  base = keys[1]
  channels = SHARDED and base or 'flotilla:'
  time, deferred, queued, messages, dropped = nil, {}, {}, {}, {}
  woken, warm, urgent, hints = {}, {}, {}, {}
  counted, accepted, kept_before = {}, 0, {}
end

local function key(word, id) return base .. word .. ':' .. id end
local function int(x) return string.format('%.0f', x) end

local function read_clock() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end

local function now_us()
  time = time or read_clock()
  return time
end

-- Writes of many jobs to one key are one command, at the end of the call. No script reads what it has deferred.
local function defer(command, name, ...)
  local words = deferred[command .. name]
  if not words then
    words = {command, name}
    deferred[command .. name], queued[#queued + 1] = words, words
  end
  for i = 1, select('#', ...) do words[#words + 1] = select(i, ...) end
end

local function flush_writes()
  for _, words in ipairs(queued) do
    if #words < 4000 then
      redis.call(unpack(words))
    else
      for i = 3, #words, 4000 do redis.call(words[1], words[2], unpack(words, i, math.min(#words, i + 3999))) end
    end
  end
  deferred, queued = {}, {}
end

-- Publish frames to gateways at the end of the call.
local function tell(watchers, frames)
  for gateway in string.gmatch(watchers, '%S+') do
    local parts = messages[gateway] or {}
    messages[gateway], parts[#parts + 1] = parts, frames
  end
end

-- Returns the gateways that did not receive theirs.
local function publish_frames()
  local deaf = {}
  for gateway, parts in pairs(messages) do
    -- Lua hashes each string that it makes, so one that grows part by part is expensive.
    local message = #parts == 1 and parts[1] or table.concat(parts)
    if redis.call(PUBLISH, channels .. 'tokens:' .. gateway, message) == 0 then deaf[#deaf + 1] = gateway end
  end
  messages = {}
  return deaf
end

-- Send a control message. Returns whether the worker has received it.
local function control(worker, ...)
  return redis.call(PUBLISH, channels .. 'control:' .. worker, cmsgpack.pack({...})) > 0
end

local function is_heard(worker) return redis.call('PUBSUB', NUMSUB, channels .. 'control:' .. worker)[2] > 0 end
