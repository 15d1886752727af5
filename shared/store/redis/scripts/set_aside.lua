-- Set aside what a process could not read, unless it has changed since.
-- KEYS: base
-- ARGV: what, id, name, value
--       what: 'job': field `name` of the job's record has this value ('': the whole record can't be read);
--       'log': a segment of the job's log; 'jobs': `value` is a member of the index of tenant `id`.
-- Reply: 1 if it was set aside, else 0
local what, id, name, value = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if what == 'job' then
  local found = redis.pcall('HGET', key('job', id), name)
  local wrong_type = is_wrong_type(found)
  if not wrong_type and (found or '') ~= value then return 0 end
  if not wrong_type and redis.call('EXISTS', key('job', id)) == 0 then return 0 end
  if name == 'history' and not wrong_type then
    dead_letter('field', id, 'damaged history', {history = value})
    redis.call('HDEL', key('job', id), 'history')
  else
    set_aside_job(id, wrong_type and 'wrong type' or 'damaged ' .. name)
  end
  return 1
elseif what == 'log' then
  set_aside_segment(id, value, 'unreadable entries')
  return 1
else
  if call('ZREM', key('jobs', id), value) == 0 then return 0 end
  dead_letter('member', key('jobs', id), 'no job id', {member = value})
  return 1
end
