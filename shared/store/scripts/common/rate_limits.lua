-- Limits of keys and tenants (rate_limits.py). Rates are token buckets, refilled by Redis' clock.
-- Budgets are compared with the totals of their day or month, and what is reserved on this day: in the totals of the day under `r:`.
local RATE_MS = 3600000 -- a bucket that no request has used for so long is deleted: it is full by then
local TOTALS_MS = 5356800000 -- 62 days

-- What a bucket held at a time: requests and tokens, false where that is not limited; nothing if it is full.
local function read_rate(name)
  local packed = redis.call('GET', key('rate', name))
  if not packed then return end
  local fine, _, requests, tokens, at_us = pcall(cmsgpack.unpack_limit, packed, 3)
  if fine and type(at_us) == 'number' then return requests, tokens, at_us end
end

local function write_rate(name, requests, tokens, at_us)
  redis.call('SET', key('rate', name), cmsgpack.pack(requests, tokens, at_us), 'PX', RATE_MS)
end

-- Requests for which so much was reserved on a day have ended. `unused`: tokens of it; fewer than none if more were used.
local function settle_tokens(name, unused, reserved, day)
  local requests, tokens, at_us = read_rate(name)
  if tokens then write_rate(name, requests, tokens + unused, at_us) end
  local totals, field = key('usage_totals', day), 'r:' .. name
  local left = tonumber(redis.call('HGET', totals, field) or '')
  if left and left > reserved then
    redis.call('HSET', totals, field, int(left - reserved))
  elseif left then
    redis.call('HDEL', totals, field)
  end
end

local function reserve(name, tokens, day)
  local totals, field = key('usage_totals', day), 'r:' .. name
  local before = tonumber(redis.call('HGET', totals, field) or '')
  redis.call('HSET', totals, field, int((before or 0) + tokens))
  if not before then redis.call('PEXPIRE', totals, TOTALS_MS) end
end

-- What a bucket with so many for each minute holds now.
local function refilled(level, most, minutes) return math.min(most, (level or most) + minutes * most) end

-- The reply names the limit with the longest wait.
local function refuse(request, name, number, wait_ms, left)
  local refused = request.refused
  if not refused or wait_ms > refused[3] then request.refused = {name, number, math.ceil(wait_ms), math.max(0, math.floor(left))} end
end

-- Check the rates of a name for a request; returns what they hold, false where that is not limited.
local function check_rates(request, name, requests_most, tokens_most)
  local requests, tokens, at_us = read_rate(name)
  local now, wanted = now_us(), request.tokens
  local minutes = at_us and now > at_us and (now - at_us) / 60000000 or 0
  requests = requests_most > 0 and refilled(requests, requests_most, minutes)
  tokens = tokens_most > 0 and refilled(tokens, tokens_most, minutes)
  if requests and requests < 1 then refuse(request, name, 0, (1 - requests) * 60000 / requests_most, requests) end
  -- A request that is larger than the bucket gets all of it, and the bucket owes the rest.
  local need = math.min(wanted, tokens_most)
  if tokens and tokens < need then refuse(request, name, 1, (need - tokens) * 60000 / tokens_most, tokens) end
  return requests, tokens
end

local function check_concurrent(request, name, most)
  local running = key('running', name)
  local count = redis.call('ZCARD', running)
  if count >= most then
    redis.call('ZREMRANGEBYSCORE', running, '-inf', int(now_us()))
    count = redis.call('ZCARD', running)
  end
  if count >= most then refuse(request, name, 2, 0, 0) end
  return running, count == 0
end

-- Without a time to wait what is left is reserved for requests that may use less.
local function check_budget(request, name, most, number, period, day, ms_left)
  local used = tonumber(redis.call('HGET', key('usage_totals', period), name) or '') or 0
  local reserved = tonumber(redis.call('HGET', key('usage_totals', day), 'r:' .. name) or '') or 0
  if used + reserved >= most then refuse(request, name, number, used >= most and ms_left or 0, 0) end
end
