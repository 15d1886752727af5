-- Take, keep or give up a pool's isolation: the right to run its suspects. In the first shard only.
-- KEYS: base
-- ARGV: pool, worker, stage, lock_ms
--       stage: 'draining' while the worker finishes other jobs, 'alone' when it runs nothing else, '' to give up
-- Reply: 1 if the worker has the isolation now, else 0
-- A worker that runs nothing goes before one that still has to finish jobs. This only saves effort: no job is lost
-- if two workers run suspects.
local pool, worker, stage, lock = ARGV[1], ARGV[2], ARGV[3], key('isolation', ARGV[1])
local holder, held = string.match(redis.call('GET', lock) or '', '^(%S+) (%S+)$')
if stage == '' then
  if holder == worker then redis.call('DEL', lock) end
  return 0
end
local gives_way = held == 'draining' and stage == 'alone'
if holder and holder ~= worker and not gives_way and is_connected(holder) then return 0 end
redis.call('SET', lock, worker .. ' ' .. stage, 'PX', ARGV[4])
return 1
