-- Note the results of tries to deliver events.
-- KEYS: base
-- ARGV: kept_ms, most kept, most pending, flat endpoint, how many, {delivery, claim, outcome, record}...
--       kept_ms, most kept: how long deliveries that have ended are kept, and how many of an endpoint
--       claim: as take_deliveries.lua made it; '' for an event that is in the outbox only
--       outcome: 'delivered', 'failed', or when it is tried again (us)
--       record: of a delivery that has ended, for its endpoint's log: `webhook-id ended_us ...`; else its tries
-- Reply: how many were noted; not those of claims that have run out and were taken by another process
local counts, noted, oldest, i = {}, 0, now_us() - ARGV[1] * 1000, 4
while i < #ARGV do
  local endpoint, last = ARGV[i], i + 1 + 4 * ARGV[i + 1]
  local pending, tries = key('pending', endpoint), key('tries', endpoint)
  local ended, is_there = {}, redis.call('HEXISTS', key('documents', 'webhook'), endpoint) == 1
  for n = i + 2, last, 4 do
    local delivery, claim, outcome = ARGV[n], ARGV[n + 1], ARGV[n + 2]
    if is_there and (claim == '' or redis.call('ZSCORE', pending, delivery) == claim) then
      noted = noted + 1
      if not tonumber(outcome) then
        ended[#ended + 1] = ARGV[n + 3]
        if claim ~= '' then
          redis.call('ZREM', pending, delivery)
          redis.call('HDEL', tries, webhook_id(delivery))
        end
      elseif claim == '' and redis.call('ZCARD', pending) >= tonumber(ARGV[3]) then
        outcome = 'dropped'
      else
        redis.call('ZADD', pending, outcome, delivery)
        redis.call('ZADD', base .. WORD.due, 'LT', outcome, endpoint)
        redis.call('HSET', tries, webhook_id(delivery), ARGV[n + 3])
        outcome = 'retried'
      end
      counts[outcome] = (counts[outcome] or 0) + 1
    end
  end
  if #ended > 0 then
    local log = key('delivery_log', endpoint)
    redis.call('LPUSH', log, unpack(ended))
    redis.call('LTRIM', log, 0, ARGV[2] - 1)
    local last = redis.call('LINDEX', log, -1)
    while last and tonumber(string.match(last, ' (%d+)')) < oldest do
      redis.call('RPOP', log)
      last = redis.call('LINDEX', log, -1)
    end
    redis.call('PEXPIRE', log, ARGV[1])
    if redis.call('EXISTS', pending) == 0 then redis.call('ZREM', base .. WORD.due, endpoint) end
  end
  i = last + 1
end
for outcome, count in pairs(counts) do redis.call('HINCRBY', base .. WORD.webhook_counts, outcome, count) end
return noted
