-- Withdraw a worker's advertised slots, and lease a suspect to it if no other job is on its way to it.
-- KEYS: base
-- ARGV: pool, worker, count, lease_ms, lease_id_seed, acknowledged
--       count: 0: only withdraw the slots, 1: lease a suspect; acknowledged: as for acquire.
-- Reply: {now_us, jobs on their way to the worker, fence_token, job or none}; a job as from acquire
-- Invariant: no job is assigned to the worker afterwards, until it advertises slots again.
local pool, worker, lease_ms = ARGV[1], ARGV[2], ARGV[4]
local who = advertiser(worker, lease_ms)
local n_in_flight = in_flight(pool, who, ARGV[6])
advertise(pool, who, 0, n_in_flight)
local reply, name = {int(now_us()), n_in_flight, fence_token_of(worker)}, suspects_of(pool)
local may_lease = ARGV[3] == '1' and n_in_flight == 0
while may_lease and not reply[4] do
  local entry = read(name, worker, 1)[1]
  if not entry then break end
  local id, job = leasable(name, entry)
  if id then reply[4] = lease(id, job, worker, lease_ms, next_lease_id(ARGV[5]), reply[1], {}) end
end
flush_writes()
return reply
