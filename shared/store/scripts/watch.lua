-- A gateway follows a job; then it reads the log. The reply to the next emit of the job's worker tells it.
-- ARGV: id, gateway, follow ('1' if a client of the gateway sees the answer grow: the job can't begin anew then)
-- Reply: {state, generation of the worker that has it ('': no worker has it), 1 if it has a log, else 0, number
--        of the last entry of answers that are void, 0: it has never begun anew}; nil: there is no such job
local id, gateway, follow = ARGV[1], ARGV[2], ARGV[3] == '1'
local job = load_job(id)
if not job then return nil end
if not ENDS[job.state] then
  if job.keep_ms ~= '' then redis.call('ZREM', base .. 'unattended', id) end
  local known = is_watcher(job.watchers, gateway)
  if not known then job.watchers = job.watchers == '' and gateway or job.watchers .. ' ' .. gateway end
  if not known or follow and job.watched ~= '1' then
    if follow then job.watched = '1' end
    redis.call('HSET', key('job', id), 'watchers', job.watchers, 'watched', job.watched)
  end
  note_followers(id, job) -- Redis may have lost what it had told the holder
end
return {job.state, job.state == 'in_progress' and int(job.generation) or '', job.generation > 0 and 1 or 0, job.start}
