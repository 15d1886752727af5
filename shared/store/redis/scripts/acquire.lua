-- Read at most `count` entries of a pool's lanes, best lane first, and lease each job to one worker.
-- KEYS: base
-- ARGV: pool, worker, count, lease_ms, lease_id_seed, slots, acknowledged, lane...
--       lease_id_seed: 12 characters, 4 are added for each job; slots: to advertise, `count` included;
--       acknowledged: what the worker believes to be left of the slots it advertised last ('': unknown).
-- Reply: {now_us, advertised, fence_token, 1 if suspects wait, job...}; a job: {id, lease_id, generation,
--       attempt, created_us, stream, endpoint, body, watchers, watched, origin, tenant}
-- Slots are advertised only where no job is left waiting (submit.lua).
-- Invariant: reading and leasing are one step, so no worker ever holds an entry that it has no slot for.
local pool, worker, count, lease_ms, seed = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local FIRST_LANE, FIRST_JOB = 8, 4
local ROUNDS = 64
local now = int(now_us())
local who = advertiser(worker, lease_ms)
local n_in_flight = in_flight(pool, who, ARGV[7])
count = count - n_in_flight
local reply = {now, 0, fence_token_of(worker), redis.call('EXISTS', waiting_key(suspects_of(pool)))}

local empty = true
for i = FIRST_LANE, #ARGV do
  local name = pool .. ':' .. ARGV[i]
  -- Entries that lead to no job take no slot, so read on; ROUNDS bounds one call.
  for round = 1, ROUNDS do
    local free = count - (#reply - FIRST_JOB)
    if free <= 0 then empty = false; break end
    local entries = read(name, worker, free)
    for _, entry in ipairs(entries) do
      local id, job = leasable(name, entry)
      if id then reply[#reply + 1] = lease(id, job, worker, lease_ms, next_lease_id(seed), now, {}) end
    end
    if #entries < free then break end
    if round == ROUNDS then empty = false end
  end
end
local list = key('wake_ups', pool)
if empty then
  redis.call('DEL', list)
elseif call('LLEN', list) == 0 then
  wake_workers(pool, 1) -- more may wait: another idle worker must look
end
if empty then reply[2] = math.max(0, ARGV[6] - (#reply - FIRST_JOB)) end
advertise(pool, who, reply[2], n_in_flight)
flush_writes()
call('SADD', base .. WORD.pool_names, pool)
return reply
