-- Look at some unfinished jobs, behind those of the call before. Requeue those that no worker would get: jobs that wait and
-- are in no line, jobs that run and are held by no worker. No script leaves such a job behind; a person who deletes keys does.
-- Jobs whose gateways are gone are cancelled later, as if their clients had left.
-- KEYS: base
-- ARGV: limit, lane...
-- Reply: flat id, new state, ...
-- Invariant: what the other scripts left is not changed.
local RECONNECT_MS = 2000 -- a gateway that has lost its connection for a moment watches its jobs again
local left, cursor, result = tonumber(ARGV[1]), base .. WORD.checked, {}
local last, after = string.match(redis.call('GET', cursor) or '', '^(.+) (%S+)$')

local function in_line(id, job)
  if job.queue ~= job.pool .. ':' .. job.lane then return true end -- it is read from the stream
  return redis.call('ZSCORE', tenant_key(job.queue, job.tenant), id) and redis.call('ZSCORE', turns_key(job.queue), job.tenant)
end

local function is_held(job)
  local pending = redis.pcall('XPENDING', queue_key(job.queue), GROUP, job.entry, job.entry, 1)
  return not pending.err and #pending > 0
end

local function check(name, entry)
  local id = job_in(entry)
  local job = load_job(id, TO_REQUEUE)
  local state
  if not (job and job.queue == name and job.entry == entry[1] and FROM.cancel[job.state]) then
    delete_entry(name, entry[1])
  elseif FROM.acquire[job.state] and not in_line(id, job) then
    state = queue_again(id, job, job.attempts, {}, true)
  elseif FROM.requeue[job.state] and not is_held(job) then
    state = requeue_or_fail(id, job, 'worker_lost', false)
  end
  if state then
    result[#result + 1], result[#result + 2] = id, state
  elseif job and FROM.cancel[job.state] and job.keep_ms ~= '' and job.watchers ~= '' and not is_attended(job) then
    cancel_later(id, job, RECONNECT_MS)
  end
end

local streams, stopped = {}, nil
for _, pool in ipairs(redis.call('SMEMBERS', base .. WORD.pool_names)) do
  for i = 2, #ARGV do streams[#streams + 1] = pool .. ':' .. ARGV[i] end
end
table.sort(streams)
for _, name in ipairs(streams) do
  if left > 0 and name >= (last or '') then
    local from = name == last and '(' .. after or '-'
    local entries = redis.call('XRANGE', queue_key(name), from, '+', 'COUNT', left)
    for _, entry in ipairs(entries) do check(name, entry) end
    left = left - #entries
    if left == 0 then stopped = name .. ' ' .. entries[#entries][1] end
  end
end
if stopped then redis.call('SET', cursor, stopped) else redis.call('DEL', cursor) end
return result
