-- Cancel jobs, or take those back that a worker gives up.
-- ARGV: event, why, tenant, id, generation...
--       event: 'cancelled', 'handed_over' (a job keeps its place) or 'requeued' (it counts as a lost attempt); why: code or reason;
--       tenant: whose jobs they are, '': of any; generation: of the holder that gives it up, '': whoever has it.
-- Reply: the state of each job: '' if there is no such job of the tenant, or another one has it
local reply = {}
for i = 4, #ARGV, 2 do
  local id, generation = ARGV[i], ARGV[i + 1]
  local job = load_job(id)
  local is_own = job and (ARGV[3] == '' or job.tenant == ARGV[3])
                 and (generation == '' or job.state == 'in_progress' and int(job.generation) == generation)
  reply[#reply + 1] = is_own and (take(id, job, ARGV[1], ARGV[2]) or job.state) or ''
end
return reply
