-- Add entries of a shard (ended.lua) to the sums of their days, and to the totals that budgets are compared with.
-- ARGV: reader, after, upto, n_jobs, kept_ms of days, most rows, rows, totals, settled
--       reader, after, upto: see `advance`; most rows: of a tenant in a day, what is more goes into the row of `other`;
--       rows: msgpack array of {day, tenant, msgpack of {key, model}, msgpack of {OTHER, OTHER}, sums}
--       (UsageSums); totals: msgpack array of {period, field, tokens};
--       settled: of {name of limits, tokens that were taken and not used, or used and not taken if below 0, tokens that were taken, day}.
-- Reply: 1; 0 if another process has added these, or some of them
-- Invariant: each entry is in the sums once: they and the position of the shard are changed in one call.
-- First: where a sum is damaged what follows is not added, but nothing is added twice.
if not advance(ARGV[1], ARGV[2], ARGV[3]) then return 0 end
redis.call('HINCRBY', base .. 'ended_read', 'added', ARGV[4])

local function add(day, tenant, owner, other, sums)
  local rows = key('usage_rows', day .. ':' .. tenant)
  local packed = redis.call('HGET', rows, owner)
  if not packed and redis.call('HLEN', rows) >= tonumber(ARGV[6]) then
    owner, packed = other, redis.call('HGET', rows, other)
  end
  for i, value in ipairs(packed and cmsgpack.unpack(packed) or {}) do sums[i] = (sums[i] or 0) + value end
  redis.call('HSET', rows, owner, cmsgpack.pack(sums))
  if not packed then
    local tenants = key('usage_day', day)
    redis.call('SADD', tenants, tenant)
    redis.call('PEXPIRE', rows, ARGV[5])
    redis.call('PEXPIRE', tenants, ARGV[5])
  end
end

for _, row in ipairs(cmsgpack.unpack(ARGV[7])) do add(unpack(row)) end
local periods = {}
for _, total in ipairs(cmsgpack.unpack(ARGV[8])) do
  local totals = key('usage_totals', total[1])
  periods[totals] = true
  redis.call('HINCRBY', totals, total[2], int(total[3]))
end
for totals in pairs(periods) do redis.call('PEXPIRE', totals, TOTALS_MS) end
for _, settled in ipairs(cmsgpack.unpack(ARGV[9])) do settle_tokens(unpack(settled)) end
return 1
