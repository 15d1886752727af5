-- The outbox: what has ended and is to be told to webhook endpoints. Maintenance makes deliveries of it.

-- `notify`: of the record of what has ended (webhook_delivery.py), '' or nil for nobody. It is written if it names endpoints,
-- or if its tenant has any.
local function tell_end(id, state, tenant, notify)
  if (notify or '') == '' then return end
  local names_some = string.find(notify, ' ', 1, true)
  if not names_some and redis.call('SISMEMBER', base .. WORD.webhook_tenants, tenant) == 0 then return end
  -- A list of lines costs a third of a stream: each end is written, read and deleted here.
  redis.call('RPUSH', base .. WORD.outbox, id .. '\n' .. state .. '\n' .. int(now_us()) .. '\n' .. notify .. '\n' .. tenant)
end

-- A delivery is `webhook-id type subject at_us`.
local function webhook_id(delivery) return string.match(delivery, '^%S+') end
