-- One call of a script: its state, keys, Redis' clock, commands, deferred writes.
-- loader.py puts these tables in front: WORD and CHANNEL (keys.py), PUBLISH and NUMSUB (subscription.py), GROUP, RETRY_LANE, SUSPECT_LANE,
-- SUSPECT_FROM, CLIENT_LANES, IS_CLIENT_LANE, ADAPTER_MARK (lanes.py), STATE, FROM and TO (states.py: event -> states it is allowed in, event -> state it leads to),
-- KIND and CONTROL (frames.py), STEPS (step_log.py),
-- DEPTHS and PLACEMENT (placement.py), REQUEST and LEASE (record.py: names of fields).
-- The common parts run once, when the scripts are loaded (Redis offers no ipairs, string... then);
-- `begin` runs before each call.
-- Every script checks first and writes last, and may be repeated: a call whose reply was lost is sent again.

-- The state of one call.
local base -- KEYS[1]: what all keys of the shard begin with; they share its hash tag
local read_us -- the time
local drafts, draft_names -- deferred writes
local requests -- packed request -> metatable; many jobs of a call have the same one
local step_logs -- worker -> how many jobs were looked for in its step log, and its index
local share_rules -- ShareRules
local growth -- of charges
local joined -- sets that were joined; names of lanes, in order, and the tenants of each that need a turn
local lease_ids -- how many were made

local function begin(keys)
  base = keys[1]
  read_us, lease_ids, drafts, draft_names, requests, step_logs = nil, 0, {}, {}, {}, {}
  growth, joined, share_rules = nil, {}, {half_life_us = 0, lift = 0}
end

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

-- Deferred writes: one command for all members of a key, at the end of the script. The writes of a step
-- or a batch of jobs cost a fraction of what they would one by one. A script does not read what it deferred.
local function defer(command, name, word, second) -- one word of a member, or two
  local id = command .. name
  local draft = drafts[id]
  if not draft then
    draft = {command, name}
    if command == 'XACK' then draft[3] = GROUP end
    drafts[id] = draft
    draft_names[#draft_names + 1] = id
  end
  local n = #draft + 1
  draft[n], draft[n + 1] = word, second
  if n > 4000 then redis.call(unpack(draft)); drafts[id] = nil end
end

local function flush_writes()
  for _, id in ipairs(draft_names) do
    if drafts[id] then redis.call(unpack(drafts[id])) end
  end
  drafts, draft_names = {}, {}
end
