-- Lease at most `count` jobs of a pool's lanes to one worker, best lane first, in the order of turns (turns.lua).
-- KEYS: base
-- ARGV: pool, worker, count, lease_ms, lease_id_seed, slots, acknowledged, expected_cost, half_life_us, charges, window,
--       patience_us, overtake_us, lane...
--       lease_id_seed: 12 characters, 4 are added for each job; slots: to advertise, `count` included;
--       acknowledged: what the worker believes to be left of the slots it advertised last ('': unknown);
--       expected_cost: of a job, charged for each where several tenants wait (fair_shares.py); half_life_us, charges:
--       as for renew; window, patience_us, overtake_us: see PlacementRules.
-- Reply: {now_us, advertised, fence_token, 1 if suspects wait, us until jobs may be taken that are left to their
--       warm workers now (0: there are none), job...}; a job: {id, lease_id, generation,
--       attempt, created_us, stream, endpoint, body, watchers, watched, origin, tenant, lane, weight or '', charged or '',
--       '1' if it has a deadline that goes on while it waits again, else '', and if its prompt is not short: leading blocks
--       of it that the worker may hold}
-- Slots are advertised only where no job is left waiting (submit.lua).
-- Invariant: taking and leasing are one step, so no worker ever holds an entry that it has no slot for.
local pool, worker, count, lease_ms, seed = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local expected_cost = tonumber(ARGV[8])
local FIRST_LANE, FIRST_JOB = 14, 5
local ROUNDS = 64 -- turns. What leads to no job takes no slot, so a claim goes on; this bounds one call
local MOST_AT_ONCE = 4 -- of one tenant, where others wait
local MOST_LEFT = 32 -- so many tenants' jobs a claim leaves to warm workers
local rounds, n_left = 0, 0
local now = int(now_us())
local who = advertiser(worker, lease_ms)
local n_in_flight = in_flight(pool, who, ARGV[7])
count = count - n_in_flight
local reply = {now, 0, fence_token_of(worker), redis.call('EXISTS', waiting_key(suspects_of(pool))), 0}

local function free() return count - (#reply - FIRST_JOB) end
local warm_blocks = {} -- of jobs that were looked at: how many leading blocks of their prompts this worker may hold
local function lease_here(id, job, charged)
  reply[#reply + 1] = lease(id, job, worker, lease_ms, next_lease_id(seed), now, {}, charged, warm_blocks[id])
end

-- Requeued jobs, in the order of their stream. Returns whether none is left.
local function read_lane(name)
  for _ = 1, ROUNDS do
    local missing = free()
    if missing <= 0 then return false end
    local entries = read(name, worker, missing)
    for _, entry in ipairs(entries) do
      local id, job = leasable(name, entry)
      if id then lease_here(id, job) end
    end
    if #entries < missing then return true end
  end
  return false
end

-- Lease those of these jobs that wait in the lane. `turn`: of their tenant, nil: no other one waits; stops when its level is
-- above `limit`. Adds to `entries`. Returns how many ids it is done with.
local function lease_in_turn(name, ids, entries, turn, limit)
  for n, id in ipairs(ids) do
    if turn and n > 1 and turn.level > limit then return n - 1 end
    local job = load_job(id, TO_LEASE)
    local waits_here = job and job.queue == name and FROM.acquire[job.state]
    if waits_here and may_start(id, job) then
      local charged = turn and expected_cost / (tonumber(job.weight) or 1)
      if turn then
        turn.level = turn.level + charge_of_claim(turn.level, charged) * charge_growth()
        turn.is_charged = true
      end
      entries[#entries + 1] = job.entry
      lease_here(id, job, charged)
    elseif not job or not FROM.acquire[job.state] then
      defer('ZREM', waiting_key(name), id)
    end
  end
  return #ids
end

local window, patience_us, overtake_us = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local some_have_prefixes
local slots_of = {} -- of members of `advertised`

-- For each of these jobs how many leading blocks of its prompt this worker may hold; nil if no job has prefixes. `all`: of
-- each what placement.lua has written, or false. Also the warm workers of all their prefixes, and of each job how many are
-- in front of its own.
local function known_blocks(all)
  local hashes, size, depths_of, before, known = {}, 0, {}, {}, {}
  for depths = 1, #DEPTHS do depths_of[PREFIXES_AT - 1 + depths * PLACEMENT.HASH_BYTES] = depths end
  for n = 1, #all do
    local depths = all[n] and depths_of[#all[n]] -- nil: Redis has lost some of it
    before[n] = size
    if depths then
      add_hashes(hashes, size, all[n], PREFIXES_AT, depths)
      size = size + depths
    end
  end
  if size == 0 then return nil end
  before[#all + 1] = size
  local found = warm_workers(pool, hashes)
  for n = 1, #all do
    local at, own = before[n], 0
    for i = at + 1, before[n + 1] do
      if found[i] == who then own = DEPTHS[i - at] end
    end
    known[n] = own
  end
  return known, found, before
end

-- The worker that is warm for most of a prompt, and for how many blocks; nil if none is. `at`, `last`: see known_blocks.
local function warmest(found, at, last)
  for i = last, at + 1, -1 do
    if found[i] then return found[i], DEPTHS[i - at] end
  end
end

-- Whether a job is left to the worker that is warm for so many blocks of it. One that has a free slot is woken for it.
local function is_left_to(member, blocks, packed)
  if n_left >= MOST_LEFT or has_deadline(packed) then return false end
  local until_us = waits_since(packed) + patience_us - now
  if until_us <= 0 then return false end
  if slots_of[member] == nil then
    slots_of[member] = tonumber(redis.call('ZSCORE', key('advertised', pool), member) or '') or false
  end
  local slots = slots_of[member]
  if not slots or not prefers(blocks, slots, free()) then return false end
  if slots >= 1 then wake_worker(pool, (read_advertiser(member))) end
  if reply[5] == 0 or until_us < reply[5] then reply[5] = until_us end
  return true
end

-- Of the first of a tenant's waiting jobs those that this worker takes, at most `most`: first those of whose prompts it
-- may hold most, then the oldest. Also whether there are others, and whether some are left to their warm workers.
local function choose(waiting, most)
  if some_have_prefixes == nil then
    some_have_prefixes = window > 0 and redis.call('EXISTS', key('waiting_prefixes', pool)) == 1
  end
  local ids = redis.call('ZRANGE', waiting, 0, some_have_prefixes and math.max(most, window - 1) or most)
  local all, known, found, before, latest
  if some_have_prefixes and #ids > 0 then
    all = redis.call('HMGET', key('waiting_prefixes', pool), unpack(ids))
    known, found, before = known_blocks(all)
  end
  if not known then
    local are_others = #ids > most
    return {unpack(ids, 1, math.min(most, #ids))}, are_others, false
  end
  local function may_overtake(n) -- the oldest
    latest = latest or (all[1] and waits_since(all[1]) or tonumber(redis.call('ZSCORE', waiting, ids[1]))) + overtake_us
    return all[n] and waits_since(all[n]) <= latest
  end
  local taken, left = {}, false
  for _ = 1, math.min(most, #ids) do
    local best, blocks = nil, 0
    for n = 1, #ids do
      if known[n] and known[n] > blocks and may_overtake(n) then best, blocks = n, known[n] end
    end
    for n = 1, best and 0 or #ids do
      if known[n] then
        local member, held = warmest(found, before[n], before[n + 1])
        if member and known[n] == 0 and is_left_to(member, held, all[n]) then
          known[n], left = false, true
        else
          best, blocks = n, known[n]
          break
        end
      end
    end
    if not best then break end
    taken[#taken + 1] = ids[best]
    warm_blocks[ids[best]] = all[best] and blocks or nil
    known[best] = false
  end
  return taken, #ids > #taken, left
end

-- One turn: some jobs of a tenant. `limit`: the next one's level; nil: there is none.
local function take_turn(name, turn, limit, entries, left_out)
  rounds = rounds + 1
  local waiting = tenant_key(name, turn.tenant)
  local most = limit and math.min(free(), MOST_AT_ONCE) or free()
  local ids, are_others, left = choose(waiting, most)
  local done = 0
  if #ids > 0 then
    done = lease_in_turn(name, ids, entries, limit and turn, limit)
    redis.call('ZREM', waiting, unpack(ids, 1, done))
  end
  turn.is_over = done == #ids and not are_others
  if left and done == #ids and #ids < most then
    left_out[turn.tenant], left_out.n, turn.is_left = true, left_out.n + 1, true
    n_left = n_left + 1
  end
end

-- The tenants with the lowest scores, at most `most`, with their levels, which may be higher; and a level that no other
-- tenant is below; nil: there is no other.
local function read_turns(name, most, left_out)
  local flat, turns, tenants = redis.call('ZRANGE', turns_key(name), 0, most - 1, 'WITHSCORES'), {}, {}
  for i = 1, #flat, 2 do
    if not left_out[flat[i]] then
      tenants[#tenants + 1] = flat[i]
      turns[#turns + 1] = {tenant = flat[i], score = tonumber(flat[i + 1])}
    end
  end
  local levels = #flat > 2 and #tenants > 0 and redis.call('ZMSCORE', levels_key(name), unpack(tenants)) or {}
  for i, turn in ipairs(turns) do turn.level = #flat == 2 and turn.score or tonumber(levels[i] or 0) end
  return turns, #flat / 2 == most and tonumber(flat[#flat]) or nil
end

-- The turn with the lowest level, and the level of the next one, `others` at most; nil, nil if there is none.
local function lowest_turn(turns, others)
  local best, limit = nil, others
  for _, turn in ipairs(turns) do
    if not turn.is_over and not turn.is_left then
      if not best or turn.level < best.level then best, turn = turn, best end
      if turn and (not limit or turn.level < limit) then limit = turn.level end
    end
  end
  return best, limit
end

-- Take turns until no slot is free, or another tenant than those that were read may be next. False if no tenant has a job
-- that this worker may take.
local function take_turns(name, entries, left_out)
  local turns, others = read_turns(name, math.min(free(), ROUNDS) + 1 + left_out.n, left_out)
  local scores, levels, ended = {}, {}, {}
  while free() > 0 and rounds < ROUNDS do
    local turn, limit = lowest_turn(turns, others)
    if not turn or others and turn.level > others then break end
    take_turn(name, turn, limit, entries, left_out)
  end
  for _, turn in ipairs(turns) do
    if turn.is_over then
      ended[#ended + 1] = turn.tenant
    elseif turn.level ~= turn.score then
      scores[#scores + 1], scores[#scores + 2] = turn.level, turn.tenant
    end
    if turn.is_charged then levels[#levels + 1], levels[#levels + 2] = turn.level, turn.tenant end
  end
  if #levels > 0 then redis.call('ZADD', levels_key(name), unpack(levels)) end
  if #scores > 0 then redis.call('ZADD', turns_key(name), unpack(scores)) end
  if #ended > 0 then redis.call('ZREM', turns_key(name), unpack(ended)) end
  return #turns > 0
end

-- Jobs of a client lane. Returns whether none is left.
local function take_lane(name)
  local entries, left_out = {}, {n = 0}
  -- A reading that leads to no turn puts scores right, and counts as one.
  while free() > 0 and rounds < ROUNDS and take_turns(name, entries, left_out) do rounds = rounds + 1 end
  if #entries > 0 then hand_out(name, worker, entries) end
  return free() > 0 and rounds < ROUNDS
end

share_rules.half_life_us = tonumber(ARGV[9])
charge_all(ARGV[10])
local empty = true
local function exist(key_of) return redis.call('EXISTS', unpack(lane_keys(pool, key_of))) > 0 end
local someone_waits = exist(waiting_key) or exist(turns_key)
if someone_waits then charge_growth() end -- it may scale the levels, so before they are read
for i = FIRST_LANE, #ARGV do
  local name = pool .. ':' .. ARGV[i]
  if not IS_CLIENT_LANE[ARGV[i]] then
    empty = read_lane(name) and empty
  elseif someone_waits then
    empty = take_lane(name) and empty
  end
end
local list = key('wake_ups', pool)
if empty then
  redis.call('DEL', list)
elseif redis.call('LLEN', list) == 0 then
  wake_workers(pool, 1) -- more may wait: another idle worker must look
end
if empty then reply[2] = math.max(0, ARGV[6] - (#reply - FIRST_JOB)) end
advertise(pool, who, reply[2], n_in_flight)
flush_writes()
redis.call('SADD', base .. WORD.pool_names, pool)
return reply
