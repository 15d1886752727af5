-- Take a request, and the tokens that it may use, from all limits of its key and tenant, or from none.
-- ARGV: msgpack of {holder, lease_ms, tokens, day, month, ms to the end of the day, of the month, limits}
--       holder: who counts as a concurrent request for lease_ms, '' for none; limits: {name, requests a minute, tokens a minute,
--       concurrent requests, tokens a day, tokens a month} of each name, 0: no limit
-- Reply: {} or {name, number of the limit from 0 on, ms until there is enough (0: not known), what is left}, then of each name
--       {requests left, tokens left}, -1 where that is not limited
-- A repeated call takes a second time.
-- Invariant: in any time no more is taken of a rate than it allows for that and one minute more, of a budget no more than it has and
--       one request more. A holder that is not renewed does not count after lease_ms.
local holder, lease_ms, tokens, day, month, day_ms, month_ms, limits = unpack(cmsgpack.unpack(ARGV[1]))
local request, rates, running, reply = {tokens = tokens}, {}, {}, {{}}

for n, limit in ipairs(limits) do
  local name, requests_most, tokens_most, concurrent, per_day, per_month = unpack(limit)
  local requests_left, tokens_left
  if requests_most + tokens_most > 0 then requests_left, tokens_left = check_rates(request, name, requests_most, tokens_most) end
  if concurrent > 0 and holder ~= '' then
    local key, is_new = check_concurrent(request, name, concurrent)
    running[key] = is_new
  end
  if per_day > 0 then check_budget(request, name, per_day, 3, day, day, day_ms) end
  if per_month > 0 then check_budget(request, name, per_month, 4, month, day, month_ms) end
  rates[n] = {requests_left, tokens_left}
end

local refused, now = request.refused, now_us()
if refused then reply[1] = refused end
for n, rate in ipairs(rates) do
  local requests_left, tokens_left = rate[1], rate[2]
  if not refused and (requests_left or tokens_left) then
    requests_left, tokens_left = requests_left and requests_left - 1, tokens_left and tokens_left - tokens
    write_rate(limits[n][1], requests_left, tokens_left, now)
  end
  reply[n + 1] = {requests_left or -1, tokens_left or -1}
end
if refused then return reply end
for _, limit in ipairs(limits) do
  if limit[5] + limit[6] > 0 then reserve(limit[1], tokens, day) end
end
for key, is_new in pairs(running) do
  redis.call('ZADD', key, int(now + lease_ms * 1000), holder)
  -- It has time to live mostly: one call of 32 is enough for that.
  if is_new or now % 32 == 0 then redis.call('PEXPIRE', key, RATE_MS) end
end
return reply
