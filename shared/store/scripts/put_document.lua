-- Store a document, or change one that is still as the caller has read it (documents.py).
-- ARGV: kind, id, tenant, before ('': it is new), after, channel or '', bytes, place, most, most_bytes, expires_us or '', room (4)
--       before, after: its text; what follows `bytes` is of a new one; most, most_bytes: what the tenant may have of this kind, 0: no limit
-- Reply: {'ok', 0}; {'changed', 0}; 'number' or 'bytes', what the tenant has; 'quota' or 'memory', what it keeps
-- Invariant: `document_bytes` is the sum over the tenant's documents.
local kind, id, tenant, before, after, channel, bytes, place, most, most_bytes, expires_us = unpack(ARGV)
local all, index, sizes, expiring = document_keys(kind, tenant)
local there = redis.call('HGET', all, id) or ''
if there == after then return {'ok', 0} end -- a repeated call
if there ~= before then return {'changed', 0} end
if before == '' then
  local number, has = redis.call('ZCARD', index), tonumber(redis.call('HGET', sizes, tenant) or 0)
  if has + bytes > quota(most_bytes) then return {'bytes', has} end
  if number + 1 > quota(most) then return {'number', number} end
  if COUNTED[kind] then
    local what, own = too_much(tenant, document_cost(after), room_of(unpack(ARGV, 12, 15)))
    if what then return {what, own} end
  end
  redis.call('ZADD', index, place, id)
  if bytes ~= '0' then redis.call('HINCRBY', sizes, tenant, bytes) end
  if expires_us ~= '' then redis.call('ZADD', expiring, expires_us, id) end
end
if COUNTED[kind] then keep(tenant, document_cost(after) - document_cost(there)) end
redis.call('HSET', all, id, after)
tell_change(after, channel)
return {'ok', 0}
