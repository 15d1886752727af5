-- Placement: which worker has run the prefix of a prompt last, its warm worker (placement.py). The map leads from the
-- hash of a prefix to a member of `advertised`. When it is full it becomes the generation before, and a new one begins.

-- Add so many hashes in `packed`, from the byte `at` on, to a list of `size`.
local function add_hashes(hashes, size, packed, at, count)
  local bytes, sub = PLACEMENT.HASH_BYTES, string.sub
  for i = 1, count do
    hashes[size + i] = sub(packed, at, at + bytes - 1)
    at = at + bytes
  end
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

-- How many leading blocks of a prompt its warm workers may hold: member -> blocks. `prefixes`: its hashes, the shortest
-- prefix first.
local function warm_of(pool, prefixes)
  local blocks, hashes = {}, {}
  add_hashes(hashes, 0, prefixes, 1, #prefixes / PLACEMENT.HASH_BYTES)
  for depth, member in ipairs(warm_workers(pool, hashes)) do
    if member then blocks[member] = DEPTHS[math.min(depth, #DEPTHS)] end
  end
  return blocks
end

-- A worker runs a prompt: it is the warm worker of its prefixes from now on.
local function note_warm(pool, member, prefixes)
  local warm, words, bytes = key('warm', pool), {}, PLACEMENT.HASH_BYTES
  for i = 1, #prefixes / bytes do
    words[2 * i - 1], words[2 * i] = string.sub(prefixes, bytes * (i - 1) + 1, bytes * i), member
  end
  local added = redis.call('HSET', warm, unpack(words))
  if added == 0 then return end
  local count = redis.call('HLEN', warm)
  if count >= PLACEMENT.MOST_PREFIXES then
    redis.call('RENAME', warm, key('warm_before', pool))
  elseif count == added then
    redis.call('PEXPIRE', warm, 1000 * PLACEMENT.KEPT_S)
  end
end

-- What a claim needs of a waiting job with prefixes lies beside the queue, as it reads many: since when the job waits, in 16
-- digits; '1' if it has a deadline, else '0'; its prefixes, of depths that are known.
local PREFIXES_AT = 18
local function waits_since(packed) return tonumber(string.sub(packed, 1, 16)) or 0 end
local function has_deadline(packed) return string.byte(packed, 17) ~= 48 end
local function wait_with_prefixes(id, pool, created_us, prefixes, deadline)
  local packed = string.format('%016d%d', created_us, deadline and 1 or 0)
  redis.call('HSET', key('waiting_prefixes', pool), id, packed .. string.sub(prefixes, 1, #DEPTHS * PLACEMENT.HASH_BYTES))
end

-- Whether it is better to have so many blocks and so many free slots than no block and `most` slots.
local function prefers(blocks, slots, most)
  local fewer = most - math.max(0, slots)
  return blocks > math.min(PLACEMENT.SLOT_BLOCKS * fewer, PLACEMENT.ALL_SLOTS_BLOCKS * fewer / math.max(1, most))
end
