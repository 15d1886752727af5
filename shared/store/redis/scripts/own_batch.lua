-- Own a batch for a while, or longer.
-- KEYS: base
-- ARGV: id, owner, lock_ms, 1 to go on with the present epoch
-- Reply: {epoch, number of the last change}; nil if another one owns it, or there is no such batch
-- Invariant: the epoch grows each time that an owner begins, and fences what was sent before (change_batch.lua, submit.lua).
local id, owner, lock_ms, goes_on = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'
local batch, lock = key('batch', id), key('batch_lock', id)
local other = call('GET', lock)
if redis.call('EXISTS', batch) == 0 or other and other ~= owner or goes_on and not other then return nil end
redis.call('SET', lock, owner, 'PX', lock_ms)
local epoch = goes_on and call('HGET', batch, 'epoch') or redis.call('HINCRBY', batch, 'epoch', 1)
return {tonumber(epoch), tonumber(call('HGET', batch, 'step') or 0)}
