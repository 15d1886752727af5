-- Store deliveries: new ones, with the results of their tries, or to be sent again.
-- ARGV: reader, after, upto, most pending, most kept, kept_ms, room (4), flat owner, id, expected, score, record, outcome, ...
--       reader, after, upto: of the entries that new ones are made of (ended.lua), '' for others; most pending, most kept: of
--       one endpoint, those that have ended are kept for kept_ms; expected: its score as the caller knows it, '' if it is new;
--       score: '' is now; outcome: what is counted, '' for nothing
-- Reply: how many were stored, and how many dropped as too many are pending; nil if another process has used the entries
-- Invariant: a delivery is changed only by whoever has its last score.
if ARGV[1] ~= '' and not advance(ARGV[1], ARGV[2], ARGV[3]) then return nil end
local most_pending, most_kept, counts, changed, stored = tonumber(ARGV[4]), tonumber(ARGV[5]), {}, {}, 0
local room = room_of(unpack(ARGV, 7, 10))
for i = 11, #ARGV, 6 do
  local owner, id, expected, score, record, outcome = unpack(ARGV, i, i + 5)
  local order, records = delivery_keys(owner)
  if tonumber(redis.call('ZSCORE', order, id) or '') == tonumber(expected) then
    local more = delivery_cost(#record) - delivery_cost(redis.call('HSTRLEN', records, id))
    local is_dropped = expected == '' and (redis.call('ZCOUNT', order, 0, '+inf') >= most_pending
                                           or too_much(string.match(owner, ' (.*)$'), more + (changed[owner] or 0), room))
    if is_dropped then
      outcome = 'dropped'
    else
      redis.call('ZADD', order, score == '' and int(now_us()) or score, id)
      redis.call('HSET', records, id, record)
      changed[owner], stored = (changed[owner] or 0) + more, stored + 1
    end
    counts[outcome] = (counts[outcome] or 0) + 1
  end
end

local oldest = int(-(now_us() - ARGV[6] * 1000))
for owner, more in pairs(changed) do
  local order, records, bytes = delivery_keys(owner)
  local n_ended = redis.call('ZCOUNT', order, '-inf', '(0')
  local n_old = math.max(n_ended - most_kept, redis.call('ZCOUNT', order, '(' .. oldest, '(0'))
  if n_old > 0 then
    for _, id in ipairs(redis.call('ZRANGE', order, n_ended - n_old, n_ended - 1)) do
      more = more - delivery_cost(redis.call('HSTRLEN', records, id))
      redis.call('HDEL', records, id)
    end
    redis.call('ZREMRANGEBYRANK', order, n_ended - n_old, n_ended - 1)
  end
  local before = tonumber(redis.call('GET', bytes) or 0)
  redis.call('SET', bytes, int(before + more))
  local endpoint, tenant = string.match(owner, '^(%S+) (.*)$')
  count_anew('deliveries:' .. endpoint, tenant, before, before + more, int(now_us() + ARGV[6] * 1000))
  local is_pending = settle(owner, order)
  for _, name in ipairs({order, records, bytes}) do
    if is_pending then redis.call('PERSIST', name) else redis.call('PEXPIRE', name, ARGV[6]) end
  end
end
for outcome, count in pairs(counts) do
  if outcome ~= '' then redis.call('HINCRBY', base .. 'webhook_counts', outcome, count) end
end
return {stored, counts.dropped or 0}
