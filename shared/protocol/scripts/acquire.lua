-- Read at most `count` entries of a pool's lanes, best lane first, and lease each job to one worker.
-- KEYS: base.  ARGV: pool, worker, count, lease in ms, lease id seed (12 characters; 4 are added for
--       each job), slots to offer to jobs to come, those that it takes for left of its last offer ('':
--       not known), then the lanes.
-- Returns {now in us, slots left of what it offers now, its fencing token, job, ...}, a job being {id, lease id,
--       generation, attempt, created_us, stream, endpoint, body, watchers, watched}.
-- Where nothing is left waiting, what stays free of the slots is on offer (submit.lua).
-- Invariant: reading and leasing are one step, so no worker ever holds an entry that it has no slot for.
local pool, worker, count, lease_ms, seed = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local ROUNDS = 64
local now = int(now_us())
local who = advertiser(worker, lease_ms)
local on_their_way = unheard(pool, who, ARGV[7])
count = count - on_their_way
local taken = {now, 0, fence_token_of(worker)}

local empty = true
for i = 8, #ARGV do
  local name = pool .. ':' .. ARGV[i]
  -- Entries that lead to no job take no slot, so read on; ROUNDS bounds one call.
  for round = 1, ROUNDS do
    local free = count - (#taken - 3)
    if free <= 0 then empty = false; break end
    local entries = read(name, worker, free)
    for _, entry in ipairs(entries) do
      local id, job = open(name, entry)
      if id then taken[#taken + 1] = lease(id, job, worker, lease_ms, next_lease_id(seed), now, {}) end
    end
    if #entries < free then break end
    if round == ROUNDS then empty = false end
  end
end
local wake_ups = key('wake_ups', pool)
if empty then
  redis.call('DEL', wake_ups)
elseif redis.call('LLEN', wake_ups) == 0 then
  ring(pool, 1) -- more may wait: who listens now must hear of it
end
if empty then taken[2] = math.max(0, ARGV[6] - (#taken - 3)) end
offer(pool, who, taken[2], on_their_way)
write_down()
redis.call('SADD', base .. WORD.pool_names, pool)
return taken
