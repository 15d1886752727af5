-- Lines: `line:<pool>:<lane>:<tenant>` has the waiting jobs of a tenant, by their time of submit; `turns:<pool>:<lane>` the tenants by
-- level (rules.py), which counts what they were served in all lanes of the pool: the lowest is next; `first:<pool>` the interrupted
-- jobs, which go before all turns. `waiting:<pool>:<lane>` has all that wait, for views and limits; `prefixes:<pool>` what a claim needs
-- of their prompts.
-- As halving all levels changes no order, charges grow instead, twofold in each half-life, and all levels are scaled back before they
-- are too large for a number.
local MOST_HALVINGS = 180 -- numbers have room for 1,000

local function lane_of(job) return job.pool .. ':' .. job.lane end

local function scale_levels(factor)
  for _, pool in ipairs(redis.call('SMEMBERS', base .. 'pools')) do
    local levels = key('levels', pool)
    redis.call('ZUNIONSTORE', levels, 1, levels, 'WEIGHTS', factor)
    redis.call('ZREMRANGEBYSCORE', levels, '-inf', 1)
    for _, lane in ipairs(LANES) do
      local turns = key('turns', pool .. ':' .. lane)
      redis.call('ZUNIONSTORE', turns, 1, turns, 'WEIGHTS', factor)
    end
  end
end

-- How many times its cost a charge is now. `half_life_us`: of levels, 0: they never halve.
local function charge_growth(half_life_us)
  if half_life_us == 0 then return 1 end
  local clock, now = base .. 'level_clock', now_us()
  local from = tonumber(redis.call('GET', clock) or '')
  local halvings = from and (now - from) / half_life_us
  if not from or halvings > MOST_HALVINGS then
    scale_levels(from and 2 ^ -halvings or 0) -- without the clock no level means anything
    redis.call('SET', clock, int(now))
    halvings = 0
  end
  return 2 ^ halvings
end

-- Add to the level of a tenant. `names`: the lanes of the pool in which jobs wait.
local function charge(names, pool, tenant, cost)
  local level = redis.call('ZINCRBY', key('levels', pool), cost, tenant)
  for _, name in ipairs(names) do redis.call('ZADD', key('turns', name), 'XX', level, tenant) end
end

-- What a claim adds to a level for a job that is expected to cost so much. A level of n jobs loses the part 1/n of itself between two
-- claims of its tenant. One with few jobs loses most, and its tenant would be served more than its share; n(e^(1/n) - 1) times the
-- cost makes up for that.
local function charge_of_claim(level, expected, growth, half_life_us)
  if half_life_us == 0 or expected <= 0 then return expected end
  local jobs = math.max(1, level / (1.5 * expected * growth))
  return expected * jobs * (math.exp(1 / jobs) - 1)
end

-- A tenant whose jobs did not wait has a turn. Its level is lifted to this part of the lowest one.
local function give_turn(name, pool, tenant, lift)
  local turns, levels = key('turns', name), key('levels', pool)
  local lowest = tonumber(redis.call('ZRANGE', turns, 0, 0, 'WITHSCORES')[2] or '') or 0
  local level = tonumber(redis.call('ZSCORE', levels, tenant) or '') or 0
  if lift * lowest > level then
    level = lift * lowest
    redis.call('ZADD', levels, level, tenant)
  end
  redis.call('ZADD', turns, level, tenant)
end

local function enter_line(id, job, lift)
  local name = lane_of(job)
  local line = key('line', name .. ':' .. job.tenant)
  local is_first = not deferred['ZADD' .. line]
  defer('ZADD', key('waiting', name), job.created_us, id)
  defer('ZADD', line, job.created_us, id)
  if job.prefixes ~= '' then defer('HSET', key('prefixes', job.pool), id, job.prefixes) end
  if is_first and not redis.call('ZSCORE', key('turns', name), job.tenant) then give_turn(name, job.pool, job.tenant, lift or 0) end
end

-- An interrupted job goes before all turns.
local function enter_first(id, job)
  defer('ZADD', key('waiting', lane_of(job)), job.created_us, id)
  defer('ZADD', key('first', job.pool), job.created_us, id)
end

local function leave_line(id, job)
  local name = lane_of(job)
  local line = key('line', name .. ':' .. job.tenant)
  redis.call('ZREM', line, id)
  redis.call('ZREM', key('first', job.pool), id)
  redis.call('ZREM', key('waiting', name), id)
  if job.prefixes ~= '' then redis.call('HDEL', key('prefixes', job.pool), id) end
  if redis.call('EXISTS', line) == 0 then redis.call('ZREM', key('turns', name), job.tenant) end
end

local function is_in_line(id, job)
  if redis.call('ZSCORE', key('first', job.pool), id) then return true end
  local name = lane_of(job)
  return redis.call('ZSCORE', key('line', name .. ':' .. job.tenant), id) and redis.call('ZSCORE', key('turns', name), job.tenant)
end
