-- Whose turn is next in a pool: the tenant with the lowest level in its best lane with waiting jobs.
-- KEYS: base
-- ARGV: pool, half_life_us, yielding, flat lane, tenant...
--       half_life_us: as for renew; yielding: the full worker that asks, if it has jobs of the lane flex, which make room for
--       others, else '' (submit.lua); lane, tenant: accounts whose levels are asked for, too.
-- Reply: {lane, tenant, waiting, level, level of each account...}: jobs that wait in the lane; levels as of now. Empty if
--        no job waits
local YIELDING_MS = 2000 -- then another one may take its place
local pool = ARGV[1]
share_rules.half_life_us = tonumber(ARGV[2])

local function level(lane, tenant) return tostring(level_of(pool .. ':' .. lane, tenant) / charge_growth()) end

if ARGV[3] ~= '' then redis.call('SET', key('yielding', pool), ARGV[3], 'NX', 'PX', YIELDING_MS) end
for _, lane in ipairs(CLIENT_LANES) do
  local tenant = redis.call('ZRANGE', turns_key(pool .. ':' .. lane), 0, 0)[1]
  if tenant then
    local waiting = redis.call('ZCARD', waiting_key(pool .. ':' .. lane))
    local reply = {lane, tenant, tostring(waiting), level(lane, tenant)}
    for i = 4, #ARGV, 2 do reply[#reply + 1] = level(ARGV[i], ARGV[i + 1]) end
    return reply
  end
end
return {}
