-- Turns: whose job is next in a lane. Of the tenants whose jobs wait, it is the one with the lowest level
-- (fair_shares.py). As halving all levels changes no order, charges grow instead, twofold in each half-life, and all
-- levels are scaled back before they are too large for a number.
-- The sets of waiting jobs per tenant are an order only: what is in them may have ended meanwhile, or wait elsewhere.
local MOST_HALVINGS = 180 -- numbers have room for 1,000

local function turns_key(name) return base .. WORD.turns .. ':' .. name end
local function tenant_key(name, tenant) return base .. WORD.waiting_of .. ':' .. name .. ':' .. tenant end
-- Adapter queues share the levels of their pool.
local function levels_key(name)
  local queue, lane = string.match(name, '^(.*):([^:]*)$')
  return base .. WORD.levels .. ':' .. pool_of(queue) .. ':' .. lane
end

local function scale_levels(factor)
  local levels = {}
  for _, pool in ipairs(redis.call('SMEMBERS', base .. WORD.pool_names)) do
    for _, lane in ipairs(CLIENT_LANES) do
      local name = pool .. ':' .. lane
      redis.call('ZUNIONSTORE', turns_key(name), 1, turns_key(name), 'WEIGHTS', factor)
      levels[levels_key(name)] = true
    end
  end
  for set in pairs(levels) do
    redis.call('ZUNIONSTORE', set, 1, set, 'WEIGHTS', factor)
    redis.call('ZREMRANGEBYSCORE', set, '-inf', 1)
  end
end

local function charge_growth()
  if share_rules.half_life_us == 0 then return 1 end
  if not growth then
    local clock, now = base .. WORD.level_clock, now_us()
    local from = tonumber(redis.call('GET', clock) or '')
    local halvings = from and (now - from) / share_rules.half_life_us
    if not from or halvings > MOST_HALVINGS then
      scale_levels(from and 2 ^ -halvings or 0) -- without the clock no level means anything
      redis.call('SET', clock, int(now))
      halvings = 0
    end
    growth = 2 ^ halvings
  end
  return growth
end

-- Add to the level of a tenant. A claim reads the tenants with the lowest scores first, so no score may be above its level:
-- what is paid back for a short answer lowers both.
local function charge(name, tenant, cost)
  local level = redis.call('ZINCRBY', levels_key(name), cost * charge_growth(), tenant)
  if cost < 0 then redis.call('ZADD', turns_key(name), 'XX', 'LT', level, tenant) end
end

-- What a claim adds to a level for a job that is expected to cost so much. A level of n jobs loses the part 1/n of itself
-- between two claims of its tenant. One with few jobs loses most, and its tenant would be served more than its share;
-- n(e^(1/n) - 1) times the cost makes up for that.
local function charge_of_claim(level, expected)
  if share_rules.half_life_us == 0 or expected <= 0 then return expected end
  local jobs = math.max(1, level / (1.5 * expected * charge_growth()))
  return expected * jobs * (math.exp(1 / jobs) - 1)
end

-- `packed`: msgpack of flat `<pool>:<lane>`, tenant, cost; '' for nothing.
local function charge_all(packed)
  if packed == '' then return end
  local charges = cmsgpack.unpack(packed)
  for i = 1, #charges, 3 do charge(charges[i], charges[i + 1], charges[i + 2]) end
end

local function level_of(name, tenant) return tonumber(redis.call('ZSCORE', levels_key(name), tenant) or '') or 0 end

-- Have a queued job wait for its tenant's turn; call `give_turns` behind the last one.
local function join_turns(name, tenant, created_us, id)
  local set = tenant_key(name, tenant)
  defer('ZADD', set, created_us, id)
  if joined[set] then return end
  joined[set] = true
  joined[#joined + 1] = name
  joined[name] = joined[name] or {}
  table.insert(joined[name], tenant)
end

-- Give those tenants a turn that have none. One that has had none is lifted to a part of the lowest level.
local function give_turns()
  for _, name in ipairs(joined) do
    local tenants, scores, levels = joined[name] or {}, {}, {}
    joined[name] = nil
    local had = #tenants > 0 and redis.call('ZMSCORE', turns_key(name), unpack(tenants)) or {}
    local new = {}
    for i, tenant in ipairs(tenants) do
      if not had[i] then new[#new + 1] = tenant end
    end
    if #new > 0 then
      local lowest = tonumber(redis.call('ZRANGE', turns_key(name), 0, 0, 'WITHSCORES')[2] or '')
      for i, level in ipairs(redis.call('ZMSCORE', levels_key(name), unpack(new))) do
        level = tonumber(level or 0)
        if lowest and share_rules.lift * lowest > level then
          level = share_rules.lift * lowest
          levels[#levels + 1], levels[#levels + 2] = level, new[i]
        end
        lowest = math.min(lowest or level, level)
        scores[#scores + 1], scores[#scores + 2] = level, new[i]
      end
      if #levels > 0 then redis.call('ZADD', levels_key(name), unpack(levels)) end
      redis.call('ZADD', turns_key(name), unpack(scores))
    end
  end
  joined = {}
end

-- A queued job has ended. (A claim takes it out of its tenant's set itself: acquire.lua.)
local function leave_waiting(id, job)
  local lane = lane_waited_in(job)
  defer('ZREM', waiting_key(lane), id)
  redis.call('HDEL', key('waiting_prefixes', job.pool), id)
  if job.queue == lane then
    local set = tenant_key(lane, job.tenant)
    if redis.call('ZREM', set, id) == 1 and redis.call('EXISTS', set) == 0 then redis.call('ZREM', turns_key(lane), job.tenant) end
  end
end
