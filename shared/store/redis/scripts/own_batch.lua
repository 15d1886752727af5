-- Own a batch for a while, or longer.
-- KEYS: base
-- ARGV: id, owner, lock_ms
-- Reply: {epoch, step}; nil if another one owns it, or there is no such batch
-- Invariant: the epoch grows with each owner, and fences what earlier ones still send (change_batch.lua, submit.lua).
local id, owner, lock_ms = ARGV[1], ARGV[2], ARGV[3]
local batch, lock = key('batch', id), key('batch_lock', id)
if redis.call('EXISTS', batch) == 0 then return nil end
local other = call('GET', lock)
if other and other ~= owner then return nil end
redis.call('SET', lock, owner, 'PX', lock_ms)
local epoch = other and call('HGET', batch, 'epoch') or redis.call('HINCRBY', batch, 'epoch', 1)
return {tonumber(epoch), tonumber(call('HGET', batch, 'step') or 0)}
