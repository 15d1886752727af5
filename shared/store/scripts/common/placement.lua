-- Placement: which worker has run the prefix of a prompt last, its warm worker (rules.py). The map leads from the hash of a prefix
-- to a worker. When it is full it becomes the generation before, and a new one begins.

-- The hashes in `packed`, added to a list; how many there are then.
local function add_hashes(hashes, packed)
  local bytes = PLACEMENT.HASH_BYTES
  for at = 1, #packed - bytes + 1, bytes do hashes[#hashes + 1] = string.sub(packed, at, at + bytes - 1) end
  return #hashes
end

-- The warm workers of these prefixes, one after the other; false where there is none.
local function warm_workers(pool, hashes)
  local found = redis.call('HMGET', key('warm', pool), unpack(hashes))
  if redis.call('EXISTS', key('warm_before', pool)) == 1 then
    local before = redis.call('HMGET', key('warm_before', pool), unpack(hashes))
    for i = 1, #hashes do found[i] = found[i] or before[i] end
  end
  return found
end

-- How many leading blocks of a prompt its warm workers may hold: worker -> blocks. `prefixes`: its hashes, the shortest prefix first.
local function warm_of(pool, prefixes)
  local blocks, hashes = {}, {}
  if add_hashes(hashes, prefixes) == 0 then return blocks end
  for depth, worker in ipairs(warm_workers(pool, hashes)) do
    if worker then blocks[worker] = DEPTHS[math.min(depth, #DEPTHS)] end
  end
  return blocks
end

-- For each of these packed prefixes (or false) how many leading blocks a worker may hold; nil if there is no prefix.
local function known_blocks(pool, worker, all)
  local hashes, behind, known = {}, {}, {}
  for n = 1, #all do behind[n] = all[n] and add_hashes(hashes, all[n]) or #hashes end
  if #hashes == 0 then return nil end
  local found, at = warm_workers(pool, hashes), 0
  for n = 1, #all do
    known[n] = 0
    for i = at + 1, behind[n] do
      if found[i] == worker then known[n] = DEPTHS[math.min(i - at, #DEPTHS)] end
    end
    at = behind[n]
  end
  return known
end

-- A worker runs a prompt: it is the warm worker of its prefixes from now on.
local function note_warm(pool, worker, prefixes)
  local words, hashes = {}, {}
  if add_hashes(hashes, prefixes) == 0 then return end
  for _, hash in ipairs(hashes) do words[#words + 1], words[#words + 2] = hash, worker end
  local map = key('warm', pool)
  local added = redis.call('HSET', map, unpack(words))
  if added == 0 then return end
  local count = redis.call('HLEN', map)
  if count >= PLACEMENT.MOST_PREFIXES then
    redis.call('RENAME', map, key('warm_before', pool))
  elseif count == added then
    redis.call('PEXPIRE', map, 1000 * PLACEMENT.KEPT_S)
  end
end

-- Whether it is better to have so many blocks, so much room and so many jobs than no block and `most` room. Without jobs less room means
-- longer prompts, and not that it has more to do.
local function prefers(blocks, room, jobs, most)
  local fewer = math.min(jobs, most - room)
  return blocks > math.min(PLACEMENT.SLOT_BLOCKS * fewer, PLACEMENT.ALL_SLOTS_BLOCKS * fewer / math.max(1, most))
end
