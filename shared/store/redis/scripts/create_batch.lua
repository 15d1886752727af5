-- Make a batch, unless it is there.
-- KEYS: base
-- ARGV: id, tenant, input file, most that the tenant may have open, created_us, field, value...
-- Reply: 1; 0 if the tenant has as many open ones; -1 if the input is not there any more
-- Invariant: a batch is among the open ones, and uses its input file, until it has ended.
local MOST_KEPT = 2000
local id, tenant, file = ARGV[1], ARGV[2], ARGV[3]
if redis.call('EXISTS', key('batch', id)) == 1 then return 1 end
if redis.call('EXISTS', key('file', file)) == 0 then return -1 end
local open = key('open_batches', tenant)
if call('SCARD', open) >= tonumber(ARGV[4]) then return 0 end
-- Of those that have ended the oldest go, if there are too many.
local all = key('batches', tenant)
if call('ZCARD', all) >= MOST_KEPT then
  for _, old in ipairs(call('ZRANGE', all, 0, MOST_KEPT / 10)) do
    if call('SISMEMBER', open, old) == 0 then
      redis.call('UNLINK', key('batch', old), key('batch_output', old), key('batch_errors', old))
      call('ZREM', all, old)
    end
  end
end
redis.call('HSET', key('batch', id), unpack(ARGV, 6))
call('SADD', open, id)
call('SADD', key('file_users', file), id)
call('ZADD', all, ARGV[5], id)
call('ZADD', base .. WORD.open_batches, ARGV[5], id)
return 1
