-- Placement: which worker has run the prefix of a prompt last, its warm worker (placement.py). The map leads from the
-- hash of a prefix to a member of `advertised`. When it is full it becomes the generation before, and a new one begins.

-- The warm workers of these prompts' prefixes, one after the other; false where there is none. `all`: of each prompt its
-- hashes, the shortest prefix first.
local function warm_workers(pool, all)
  local hashes = {}
  for _, prefixes in ipairs(all) do
    for i = 1, #prefixes, PLACEMENT.HASH_BYTES do hashes[#hashes + 1] = string.sub(prefixes, i, i + PLACEMENT.HASH_BYTES - 1) end
  end
  local found = call('HMGET', key('warm', pool), unpack(hashes))
  if redis.call('EXISTS', key('warm_before', pool)) == 1 then
    local before = call('HMGET', key('warm_before', pool), unpack(hashes))
    for i = 1, #hashes do found[i] = found[i] or before[i] end
  end
  return found
end

-- How many leading blocks of a prompt its warm workers may hold: member -> blocks.
local function warm_of(pool, prefixes)
  local blocks = {}
  for depth, member in ipairs(warm_workers(pool, {prefixes})) do
    if member then blocks[member] = DEPTHS[math.min(depth, #DEPTHS)] end
  end
  return blocks
end

-- A worker runs a prompt: it is the warm worker of its prefixes from now on. Returns how many leading blocks of the prompt
-- it may have held before.
local function note_warm(pool, member, prefixes)
  local known = warm_of(pool, prefixes)[member] or 0
  local warm, words = key('warm', pool), {}
  for i = 1, #prefixes, PLACEMENT.HASH_BYTES do
    words[#words + 1] = string.sub(prefixes, i, i + PLACEMENT.HASH_BYTES - 1)
    words[#words + 1] = member
  end
  call('HSET', warm, unpack(words))
  local count = redis.call('HLEN', warm)
  if count >= PLACEMENT.MOST_PREFIXES then
    redis.call('RENAME', warm, key('warm_before', pool))
  elseif count <= #words / 2 then
    redis.call('PEXPIRE', warm, 1000 * PLACEMENT.KEPT_S)
  end
  return known
end

-- Whether it is better to have so many blocks and so many free slots than no block and `most` slots.
local function prefers(blocks, slots, most)
  local fewer = most - math.max(0, slots)
  return blocks > math.min(PLACEMENT.SLOT_BLOCKS * fewer, PLACEMENT.ALL_SLOTS_BLOCKS * fewer / math.max(1, most))
end
