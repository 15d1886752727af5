-- Read the oldest entries of a shard's outbox, after deleting those that were read before.
-- KEYS: base
-- ARGV: process, lock_ms, limit, first entry, how many
--       lock_ms: so long no other process reads it; first entry, how many: what this one has read before, '' and 0 for nothing
-- Reply: the entries; none if another process reads them
-- Invariant: a repeated call deletes nothing more.
local process, lock_ms, limit, first, count = unpack(ARGV)
local outbox, lock = base .. WORD.outbox, base .. WORD.outbox_reader
if redis.call('EXISTS', outbox) == 0 or (redis.call('GET', lock) or process) ~= process then return {} end
redis.call('SET', lock, process, 'PX', lock_ms)
if redis.call('LINDEX', outbox, 0) == first then redis.call('LTRIM', outbox, count, -1) end
if limit == '0' then
  redis.call('DEL', lock)
  return {}
end
return redis.call('LRANGE', outbox, 0, limit - 1)
