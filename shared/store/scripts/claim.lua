-- Jobs for a worker with room: interrupted ones first, then by lane and turn. With fewer than it has room for it is noted as idle.
-- ARGV: pool, worker, room, known, most, yields, expected_cost, half_life_us, window, overtake_us, patience_us, charges, blame, home
--       as `Queue.claim` has them, ShareRules and PlacementRules; charges: msgpack of flat lane, tenant, cost, '' if there is none;
--       home: '1' if the shard is one of its home shards.
-- Reply: {now_us, job...}, a job being a HeldJob (queue.py): {id, generation, number, claims, created_us, stream, endpoint, body, its
--       bytes if it lies in a key of its own, else '', watchers, watched, origin, tenant, lane, weight or '', charged or '', stays,
--       blame, known blocks, nil: it is short}; nil if the worker has to `reconcile` first
local pool, worker, room, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), math.min(tonumber(ARGV[3]), tonumber(ARGV[5]))
local expected_cost, half_life_us = tonumber(ARGV[7]), tonumber(ARGV[8])
local window, overtake_us, patience_us = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local MOST_AT_ONCE = 4 -- of one tenant, where others wait
local PART = 8 -- such a part of what lanes that wait are served is for those below the best one
local MOST_DEBT, CREDIT_MS = 10, 2000
if count_held(worker) > tonumber(ARGV[4]) then return nil end

local reply, entries, looks, n_flex, growth = {int(now_us())}, {}, 0, 0, nil
local most_blame, is_stuck, is_lower = tonumber(ARGV[13]), false, false
local passed = {} -- of each lane: so many tenants, those with the lowest levels, have only jobs that are left to others
local function free() return most - #entries end
local function may_look() return free() > 0 and looks - #entries < MOST and not is_stuck end
local function current_growth()
  growth = growth or charge_growth(half_life_us)
  return growth
end

-- The first start of a job. Later ones change nothing: a run deadline counts from the first.
local function start_run_deadline(id, job)
  local due = math.huge
  if job.run_ms ~= '' then due = now_us() + job.run_ms * 1000 end
  if job.total_ms ~= '' then due = math.min(due, job.created_us + job.total_ms * 1000) end
  if due == math.huge then
    redis.call('HDEL', key('job', id), 'deadline_us')
    redis.call('ZREM', base .. 'deadlines', id)
  else
    redis.call('HSET', key('job', id), 'deadline_us', int(due))
    redis.call('ZADD', base .. 'deadlines', int(due), id)
  end
end

-- Hand out a job that leaves its line, unless `is_stuck` is true then: it stays. `charge_of`: returns what its tenant is charged; `known`:
-- blocks of its prompt, nil: not known.
local function hand_out(id, charge_of, known)
  looks = looks + 1
  local job = load_job(id, true)
  if not job or job.state ~= 'queued' then
    for _, lane in ipairs(LANES) do defer('ZREM', key('waiting', pool .. ':' .. lane), id) end
    return defer('HDEL', key('prefixes', pool), id)
  end
  if job.deadline_us ~= '' and tonumber(job.deadline_us) <= now_us() then
    return take(id, job, 'expired', deadline_code(job))
  end
  -- A job that was lost twice, and would fail the next time, does not begin beside another one that may have been the cause.
  local blame = math.max(job.attempts, math.min(job.claims, 1))
  is_stuck = blame * most_blame > 1
  if is_stuck then return end
  most_blame = math.max(most_blame, blame)
  local generation, number, length = 0, 0, 0
  if job.generation > 0 then generation, number, length = last_of(id) end
  if not is_whole(job, generation, number, length) then
    if is_seen(job) then return take(id, job, 'failed', 'log_lost') end
    redis.call('DEL', key('log', id)) -- the answer begins anew
    number, job.start, job.best = 0, 0, 0
  end
  if job.body_bytes ~= '' and not has_body(id, tonumber(job.body_bytes)) then return take(id, job, 'failed', 'record_damaged') end
  local charged = charge_of and charge_of(job)
  if job.claims == 0 and (job.queue_ms ~= '' or job.run_ms ~= '') then start_run_deadline(id, job) end
  local marker = mark(id, job, generation, number, event_entry('claimed', worker))
  job.worker, job.number, job.claims, job.started_us = worker, number + 1, job.claims + 1, now_us()
  redis.call('HSET', key('job', id), 'state', 'in_progress', 'lease', pack_lease(job))
  if job.prefixes ~= '' then
    known = known or warm_of(pool, job.prefixes)[worker] or 0
    note_warm(pool, worker, job.prefixes)
    defer('HDEL', key('prefixes', pool), id)
  end
  defer('ZREM', key('waiting', lane_of(job)), id)
  if job.watched == '1' then tell(job.watchers, marker) end
  if job.lane == LANES[#LANES] and not is_lower then n_flex = n_flex + 1 end
  local stays = (is_lower or job.run_ms ~= '' or job.total_ms ~= '') and 1 or 0
  entries[#entries + 1] = job.entry
  reply[#reply + 1] = {id, int(job.generation), job.number, job.claims, job.created_us, job.stream, job.endpoint, job.body, job.body_bytes,
                       job.watchers, job.watched, job.origin, job.tenant, job.lane, job.weight, charged and tostring(charged) or '',
                       stays, blame, known}
end

-- Whether a new job is left to another worker that is idle and warm for it. That worker gets a message to claim again: its first claim
-- may have come before the job.
local function is_left(prefixes, created_us)
  if created_us <= now_us() - patience_us then return false end
  local other = idle_warm(pool, prefixes, 0)
  if not other or other == worker then return false end
  tell_warm(pool, other)
  looks = looks + 1
  return true
end

-- Of the first jobs of a line those that this worker takes: first those of whose prompts it may hold most, then the oldest. Also what
-- it may hold of each.
local some_have_prefixes = window > 0 and redis.call('EXISTS', key('prefixes', pool)) == 1
local function choose(line, count)
  local flat = redis.call('ZRANGE', line, 0, some_have_prefixes and math.max(count, window) - 1 or count - 1, 'WITHSCORES')
  local ids, chosen, blocks = {}, {}, {}
  for i = 1, #flat, 2 do ids[#ids + 1] = flat[i] end
  local all = some_have_prefixes and #ids > 0 and redis.call('HMGET', key('prefixes', pool), unpack(ids))
  local known = all and known_blocks(pool, worker, all)
  if not known then return {unpack(ids, 1, math.min(count, #ids))}, blocks end
  local latest = tonumber(flat[2]) + overtake_us
  while #chosen < count do
    local best
    for n = 1, #ids do
      if known[n] and (not best or known[n] > known[best] and tonumber(flat[2 * n]) <= latest) then best = n end
    end
    if not best then break end
    if not all[best] or known[best] > 0 or not is_left(all[best], tonumber(flat[2 * best])) then
      chosen[#chosen + 1], blocks[ids[best]] = ids[best], all[best] and known[best]
    end
    known[best] = false
  end
  return chosen, blocks
end

-- Lanes with waiting jobs, best first.
local function waiting_lanes()
  local names = {}
  for _, lane in ipairs(LANES) do
    local name = pool .. ':' .. lane
    if redis.call('ZCARD', key('turns', name)) > (passed[name] or 0) then names[#names + 1] = name end
  end
  return names
end

local with_turns, rank, unit = waiting_lanes(), {}, math.max(1, expected_cost)
local waiting = with_turns
for i, lane in ipairs(LANES) do rank[pool .. ':' .. lane] = i end
-- While several lanes wait: what those below the best one may be served before it goes on, and how many turns they have had.
local credit, n_lower
if #waiting > 1 then
  credit, n_lower = string.match(redis.call('GET', key('lane_credit', pool)) or '', '^(%S+) (%d+)$')
  credit, n_lower = tonumber(credit or '') or 0, tonumber(n_lower or 0)
end

-- A lane was served so much. However much that was, the others wait for a time that has an end.
local function count_lane(name, cost)
  if not credit or #waiting < 2 then return end
  credit = credit + ((rank[name] or 1) <= rank[waiting[1]] and cost / (PART - 1) or -cost)
  credit = math.max(-MOST_DEBT * unit, math.min(MOST_AT_ONCE * unit, credit))
end

-- A turn: some jobs of the tenant with the lowest level in a lane. Returns false if no tenant waits.
local function take_turn(name, count)
  local turns, first = key('turns', name), passed[name] or 0
  local tenant, level, other, limit = unpack(redis.call('ZRANGE', turns, first, first + 1, 'WITHSCORES'))
  if not tenant then return false end
  level, limit = tonumber(level), tonumber(limit or '')
  local line = key('line', name .. ':' .. tenant)
  local ids, blocks = choose(line, other and math.min(count, MOST_AT_ONCE) or count)
  local charged, done = 0, 0
  for n, id in ipairs(ids) do
    if other and n > 1 and level > limit then break end
    hand_out(id, (other or credit) and function(job)
      local cost = expected_cost / (tonumber(job.weight) or 1)
      count_lane(name, math.max(1, cost))
      local added = charge_of_claim(level, cost, current_growth(), half_life_us) * current_growth()
      level, charged = level + added, charged + added
      return cost
    end, blocks[id])
    if is_stuck then break end
    done = n
  end
  if done > 0 then redis.call('ZREM', line, unpack(ids, 1, done)) end
  if charged > 0 then charge(with_turns, pool, tenant, charged) end
  if redis.call('EXISTS', line) == 0 then redis.call('ZREM', turns, tenant) elseif #ids == 0 then passed[name] = first + 1 end
  return true
end

local function take_lanes()
  while may_look() and #waiting > 0 do
    is_lower = #waiting > 1 and credit > 0.999 * unit -- for a whole job; sums of parts of it are not exact
    if is_lower then
      n_lower = n_lower + 1
      take_turn(waiting[2 + n_lower % (#waiting - 1)], 1)
    elseif #waiting > 1 then
      take_turn(waiting[1], math.min(free(), MOST_AT_ONCE))
    else
      while may_look() and take_turn(waiting[1], free()) do end
    end
    if may_look() then waiting = waiting_lanes() end
  end
end

-- Levels change before they are read.
if ARGV[12] ~= '' then
  local charges = cmsgpack.unpack(ARGV[12])
  for i = 1, #charges, 3 do
    count_lane(pool .. ':' .. charges[i], charges[i + 2])
    charge(with_turns, pool, charges[i + 1], charges[i + 2] * current_growth())
  end
end
if most > 0 then
  if redis.call('EXISTS', key('first', pool)) == 1 then
    while may_look() do
      local popped = redis.call('ZPOPMIN', key('first', pool), free())
      if #popped == 0 then break end
      for i = 1, #popped, 2 do
        if not is_stuck then hand_out(popped[i]) end
        if is_stuck then redis.call('ZADD', key('first', pool), popped[i + 1], popped[i]) end
      end
    end
  end
  take_lanes()
  if #entries > 0 then hold(pool, worker, entries) end
end
if credit then redis.call('SET', key('lane_credit', pool), credit .. ' ' .. n_lower, 'PX', CREDIT_MS) end
-- The message that woke it may have been for a job that it has no room for any more.
if room == 0 and #waiting > 0 then woken[pool] = 1 end
beat(worker)
if room > #entries then
  note_idle(pool, worker, room - #entries, ARGV[14] == '1')
else
  redis.call('ZREM', key('idle', pool), worker)
end
local yields = ARGV[6] + n_flex
if yields > 0 then redis.call('ZADD', key('yields', pool), yields, worker) else redis.call('ZREM', key('yields', pool), worker) end
defer('SADD', base .. 'pools', pool)
return reply
