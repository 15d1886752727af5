-- Own a batch for a while, or longer.
-- ARGV: id, owner, lock_ms, epoch that goes on or ''
-- Reply: {epoch, number of the last change}; nil if another one owns it, or no such batch is open
-- Invariant: the epoch grows each time that an owner begins, and fences what was sent before (change_batch.lua, submit.lua).
local id, owner, lock_ms, epoch = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local batch, lock = key('batch', id), key('batch_lock', id)
local other = redis.call('GET', lock)
-- A process may have read that it is open just before its end.
if not redis.call('ZSCORE', base .. 'open_batches', id) or other and other ~= owner then return nil end
-- The owner's lock may have expired between two renewals. If no other process has owned the batch since, its epoch is
-- still the present one, and the owner keeps the batch.
if epoch ~= '' and redis.call('HGET', batch, 'epoch') ~= epoch then return nil end
redis.call('SET', lock, owner, 'PX', lock_ms)
if epoch == '' then epoch = redis.call('HINCRBY', batch, 'epoch', 1) end
return {tonumber(epoch), tonumber(redis.call('HGET', batch, 'step') or 0)}
