-- A worker hands jobs back that it can't carry out (it drains, or its engine has died).
-- KEYS: base.  ARGV: reason, blame ('1': counts against the job), id, lease id, id, lease id, ...
-- Returns a flat array id, new state, ...; jobs that it had lost already are left alone.
local result = {}
for i = 3, #ARGV, 2 do
  local id = ARGV[i]
  local job = load_job(id, TO_TAKE_BACK)
  if job and held(job, ARGV[i + 1]) then
    result[#result + 1] = id
    result[#result + 1] = give_back(id, job, ARGV[1], ARGV[2] == '1')
  end
end
return result
