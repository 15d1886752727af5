-- Delete a dead letter. The job of one that was out of attempts is kept no longer than others that have ended.
-- KEYS: base
-- ARGV: letter
--       letter: id of its stream entry
-- Reply: 1 if it was deleted, 0 if there is none
local letters, values = base .. WORD.dead_letters, {}
local letter = redis.call('XRANGE', letters, ARGV[1], ARGV[1])[1]
if not letter then return 0 end
for i = 1, #letter[2], 2 do values[letter[2][i]] = letter[2][i + 1] end
redis.call('XDEL', letters, ARGV[1])
if values.what == 'attempts' then
  local id = values.id
  local job = load_job(id, {})
  if job and not FROM.cancel[job.state] then
    for _, name in ipairs({key('job', id), key('log', id)}) do
      local left_ms = redis.call('PTTL', name)
      if left_ms > tonumber(job.ttl_ms) then redis.call('PEXPIRE', name, job.ttl_ms) end
    end
  end
end
return 1
