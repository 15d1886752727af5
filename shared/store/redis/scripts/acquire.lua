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
local function lease_here(id, job, charged)
  reply[#reply + 1] = lease(id, job, worker, lease_ms, next_lease_id(seed), now, {}, charged)
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
    -- Without an entry it can't be found when its worker is lost: repair.lua makes it one, and gives it a turn.
    if waits_here and is_entry_id(job.entry) and may_start(id, job) then
      local charged = turn and expected_cost / (tonumber(job.weight) or 1)
      if turn then turn.level, turn.is_charged = turn.level + charged * charge_growth(), true end
      entries[#entries + 1] = job.entry
      lease_here(id, job, charged)
    elseif not job or not FROM.acquire[job.state] then
      defer('ZREM', waiting_key(name), id)
    end
  end
  return #ids
end

-- (Blocks, since Redis 6.2 allows 200 local variables in a script.)
local choose
do
local window, patience_us, overtake_us = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local warm_exists
local advertised_by = {}

-- Whether a job is left to the worker that is warm for so many blocks of it. One that has a free slot is woken for it.
local function is_left_to(member, blocks)
  if n_left >= MOST_LEFT then return false end
  if advertised_by[member] == nil then
    advertised_by[member] = tonumber(call('ZSCORE', key('advertised', pool), member) or '') or false
  end
  local slots = advertised_by[member]
  if not slots or not prefers(blocks, slots, free()) then return false end
  if slots >= 1 then wake_worker(pool, (read_advertiser(pool, member))) end
  return true
end

-- For each of these jobs how many leading blocks of its prompt this worker may hold: 0, or false if the job is left to a
-- worker that is warm for it. `flat`: ids and times of submit; nil if no job has prefixes.
local function known_blocks(flat)
  local prefixes, has_deadline, some = {}, {}, false
  for i = 1, #flat, 2 do
    local found = redis.pcall('HMGET', key('job', flat[i]), 'prefixes', 'deadline_us')
    prefixes[#prefixes + 1] = found[1] or '' -- of an error there is no [1]
    has_deadline[#prefixes] = found[2]
    some = some or found[1]
  end
  if not some then return nil end
  local found, at, known = warm_workers(pool, prefixes), 0, {}
  for n, packed in ipairs(prefixes) do
    local depths, own, others = #packed / PLACEMENT.HASH_BYTES, 0, nil
    for depth = 1, math.min(depths, #DEPTHS) do
      local member = found[at + depth]
      if member == who then own = DEPTHS[depth] elseif member then others = depth end
    end
    local until_us = own == 0 and others and not has_deadline[n] and flat[2 * n] + patience_us - now or 0
    if until_us > 0 and is_left_to(found[at + others], DEPTHS[others]) then
      if reply[5] == 0 or until_us < reply[5] then reply[5] = until_us end
      own = false
    end
    known[n], at = own, at + depths
  end
  return known
end

-- Of the first of a tenant's waiting jobs those that this worker takes, at most `most`: first those of whose prompts it
-- may hold most. Also whether there are others, and whether some are left to their warm workers.
function choose(waiting, most)
  if warm_exists == nil then
    warm_exists = window > 0 and redis.call('EXISTS', key('warm', pool), key('warm_before', pool)) > 0
  end
  if not warm_exists then
    local ids = call('ZRANGE', waiting, 0, most)
    local are_others = #ids > most
    if are_others then ids[#ids] = nil end
    return ids, are_others, false
  end
  local flat = call('ZRANGE', waiting, 0, math.max(most, window - 1), 'WITHSCORES')
  local known, ids, left, latest = known_blocks(flat), {}, false, nil
  for _ = 1, math.min(most, #flat / 2) do
    local best
    for n = 1, #flat / 2 do
      local blocks = not known and 0 or known[n]
      left = left or blocks == false
      if blocks and flat[2 * n - 1] then
        latest = latest or flat[2 * n] + overtake_us -- of the oldest
        if not best or blocks > best.blocks and tonumber(flat[2 * n]) <= latest then best = {n = n, blocks = blocks} end
        if not known then break end
      end
    end
    if not best then break end
    ids[#ids + 1] = flat[2 * best.n - 1]
    flat[2 * best.n - 1] = false
  end
  return ids, #flat / 2 > #ids, left
end
end

local take_turns
do
-- One turn: some jobs of a tenant. `limit`: the next one's level; nil: there is none.
local function take_turn(name, turn, limit, entries, left_out)
  rounds = rounds + 1
  local waiting = tenant_key(name, turn.tenant)
  local most = limit and math.min(free(), MOST_AT_ONCE) or free()
  local ids, are_others, left = choose(waiting, most)
  local done = 0
  if #ids > 0 then
    done = lease_in_turn(name, ids, entries, limit and turn, limit)
    call('ZREM', waiting, unpack(ids, 1, done))
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
  local flat, turns, tenants = call('ZRANGE', turns_key(name), 0, most - 1, 'WITHSCORES'), {}, {}
  for i = 1, #flat, 2 do
    if not left_out[flat[i]] then
      tenants[#tenants + 1] = flat[i]
      turns[#turns + 1] = {tenant = flat[i], score = tonumber(flat[i + 1])}
    end
  end
  local levels = #flat > 2 and #tenants > 0 and call('ZMSCORE', levels_key(name), unpack(tenants)) or {}
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
function take_turns(name, entries, left_out)
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
  if #levels > 0 then call('ZADD', levels_key(name), unpack(levels)) end
  if #scores > 0 then call('ZADD', turns_key(name), unpack(scores)) end
  if #ended > 0 then call('ZREM', turns_key(name), unpack(ended)) end
  return #turns > 0
end
end

-- Jobs of a client lane. Returns whether none is left.
local function take_lane(name)
  local entries, left_out = {}, {n = 0}
  -- A reading that leads to no turn puts scores right, and counts as one.
  while free() > 0 and rounds < ROUNDS and take_turns(name, entries, left_out) do rounds = rounds + 1 end
  if free() > 0 and rounds < ROUNDS and left_out.n == 0 then
    -- Jobs that gateways of the release before have submitted have no turn.
    flush_writes()
    lease_in_turn(name, call('ZRANGE', waiting_key(name), 0, free() - 1), entries)
  end
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
elseif call('LLEN', list) == 0 then
  wake_workers(pool, 1) -- more may wait: another idle worker must look
end
if empty then reply[2] = math.max(0, ARGV[6] - (#reply - FIRST_JOB)) end
advertise(pool, who, reply[2], n_in_flight)
flush_writes()
call('SADD', base .. WORD.pool_names, pool)
return reply
