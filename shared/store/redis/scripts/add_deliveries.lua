-- Have events delivered to endpoints.
-- KEYS: base
-- ARGV: most that may be pending for an endpoint, flat endpoint, due_us or '' for now, how many, delivery...
-- Reply: how many were dropped as too many are pending for their endpoint
-- Invariant: a delivery that is pending stays as it is. It is due at some time.
local dropped, i = 0, 2
while i < #ARGV do
  local endpoint, due, last = ARGV[i], ARGV[i + 1], i + 2 + ARGV[i + 2]
  if redis.call('HEXISTS', key('documents', 'webhook'), endpoint) == 1 then
    local pending = key('pending', endpoint)
    local room = ARGV[1] - redis.call('ZCARD', pending)
    if due == '' then due = int(now_us()) end
    for n = i + 3, last do
      if room > 0 then
        room = room - redis.call('ZADD', pending, 'NX', due, ARGV[n])
      elseif not redis.call('ZSCORE', pending, ARGV[n]) then
        dropped = dropped + 1
      end
    end
    redis.call('ZADD', base .. WORD.due, 'LT', due, endpoint)
  end
  i = last + 1
end
if dropped > 0 then redis.call('HINCRBY', base .. WORD.webhook_counts, 'dropped', dropped) end
return dropped
