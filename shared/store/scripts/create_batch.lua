-- Make a batch, unless it is there.
-- ARGV: id, tenant, input file, max_open, max_kept, deletable_ms, created_us, room (4), field, value...
--       max_open, max_kept: of the tenant; deletable_ms: an ended one that lives no longer than this may go for a new one
-- Reply: 1; 0 if the tenant has `max_open` open ones; -1 if the input is not there any more; -2 if it has `max_kept`, and
--       the oldest may not go; or {'quota' | 'memory', what the tenant keeps}
-- Invariant: a batch is among the open ones, and uses its input file, until it has ended.
local id, tenant, file, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[5])
if redis.call('EXISTS', key('batch', id)) == 1 then return 1 end
if redis.call('HEXISTS', key('documents', 'file'), file) == 0 then return -1 end
local open = key('open_batches', tenant)
if redis.call('SCARD', open) >= tonumber(ARGV[4]) then return 0 end
local all = key('batches', tenant)
if redis.call('ZCARD', all) >= most then
  for _, old in ipairs(redis.call('ZRANGE', all, 0, most / 10)) do
    if redis.call('SISMEMBER', open, old) == 0 and redis.call('PTTL', key('batch', old)) < tonumber(ARGV[6]) then
      count_anew('batch:' .. old, tenant, tonumber(redis.call('HGET', key('batch', old), 'kept') or 0), 0)
      redis.call('UNLINK', key('batch', old), key('batch_output', old), key('batch_errors', old))
      redis.call('ZREM', all, old)
    end
  end
  if redis.call('ZCARD', all) >= most then return -2 end
end
local bytes = 0
for i = 12, #ARGV do bytes = bytes + #ARGV[i] end
local what, own = too_much(tenant, RECORD_BYTES + cost(bytes), room_of(unpack(ARGV, 8, 11)))
if what then return {what, own} end
redis.call('HSET', key('batch', id), unpack(ARGV, 12))
count_batch(id, tenant, 0)
redis.call('SADD', open, id)
redis.call('SADD', key('document_users', file), id)
redis.call('ZADD', all, ARGV[7], id)
redis.call('ZADD', base .. 'open_batches', ARGV[7], id)
return 1
