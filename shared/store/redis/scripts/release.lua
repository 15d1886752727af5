-- A worker gives up jobs that it can't finish (it drains, or its engine has died), or that others are to go before.
-- KEYS: base
-- ARGV: reason, blame, in_turn, id, lease_id...
--       blame: '1' if the attempt counts against the job; in_turn: '1' if it waits for its tenant's next turn, as the first
--       of that tenant's jobs; else it is the next of its pool.
-- Reply: flat id, new state, ...; jobs that the worker had lost already are left alone
local result = {}
for i = 4, #ARGV, 2 do
  local id = ARGV[i]
  local job = load_job(id, TO_REQUEUE)
  if job and held(job, ARGV[i + 1]) then
    result[#result + 1] = id
    result[#result + 1] = requeue_or_fail(id, job, ARGV[1], ARGV[2] == '1', ARGV[3] == '1')
  end
end
return result
