-- Put right what no script leaves behind, but a Redis that lost writes does, or a person who deleted a key. Each
-- member is looked up again here: it may have changed since it was scanned.
-- KEYS: base
-- ARGV: word, rest, member...
--       word, rest: the key that was scanned (keys.py).
--       job, '': ids of records. A job that has not ended is put into what leads to it.
--       queue, '<pool>:<lane>': ids of entries; waiting, '<pool>:<lane>', or deadlines, '', or jobs, '<tenant>':
--       ids of jobs. What does not lead to such a job is taken out.
--       kept or conversations, '<tenant>': ids of what is counted. What is gone is taken out.
--       log, '': ids of logs. One that lives for ever and has no job is deleted.
-- Reply: flat what was done, how often, ids of some of these (with spaces between them), ...
-- Invariant: what the other scripts left is not changed: an entry that no worker has belongs to a job that is
-- queued, an entry that a worker has and has not acknowledged to one in progress.
local word, rest = ARGV[1], ARGV[2]
local SHOWN = 3
local done, ids = {}, {}
local function did(what, times, id)
  if times == 0 then return end
  done[what] = (done[what] or 0) + times
  ids[what] = ids[what] or {}
  if #ids[what] < SHOWN then table.insert(ids[what], id) end
end

-- Whether the group of a stream has gone past an entry. An entry that it has passed without delivering
-- is never delivered: the group was made anew, or its consumer was deleted with it.
local passed_ids = {}
local function passed(stream, entry)
  if not passed_ids[stream] then
    passed_ids[stream] = {0, 0}
    local groups = redis.pcall('XINFO', 'GROUPS', stream)
    for _, flat in ipairs(groups.err and {} or groups) do
      local group = {}
      for i = 1, #flat, 2 do group[flat[i]] = flat[i + 1] end
      if group.name == GROUP then
        local ms, n = string.match(group['last-delivered-id'], '^(%d+)-(%d+)$')
        passed_ids[stream] = {tonumber(ms), tonumber(n)}
      end
    end
  end
  local last, ms, n = passed_ids[stream], string.match(entry, '^(%d+)-(%d+)$')
  ms, n = tonumber(ms), tonumber(n)
  return ms < last[1] or (ms == last[1] and n <= last[2])
end

-- The job that a job's entry names: another one, if the stream was lost and began anew in the same moment.
local function entry_names(job)
  if not is_entry_id(job.entry) then return nil end
  local entry = redis.call('XRANGE', queue_key(job.queue), job.entry, job.entry)[1]
  return entry and job_in(entry)
end

local function has_turns(job) return job.queue == job.pool .. ':' .. job.lane end

-- Whether the job's entry leads to it: a worker will have it, or the reaper will see its holder silent.
local function has_entry(id, job)
  local stream = queue_key(job.queue)
  if entry_names(job) ~= id then return false end
  -- An entry of a lane with turns is not read, so it does not matter whether the group has passed it.
  if FROM.acquire[job.state] and has_turns(job) then return true end
  if not has_turns(job) and not passed(stream, job.entry) then return true end
  if not FROM.requeue[job.state] then return false end
  local pending = redis.pcall('XPENDING', stream, GROUP, job.entry, job.entry, 1)
  return not pending.err and #pending > 0
end

local function put_back(id, job)
  did('pool_names', redis.call('SADD', base .. WORD.pool_names, job.pool), id)
  did('jobs', redis.call('ZADD', key('jobs', job.tenant), 'NX', job.created_us, id), id)
  if job.deadline_us ~= '' then
    did('deadlines', redis.call('ZADD', base .. WORD.deadlines, 'NX', job.deadline_us, id), id)
  end
  if FROM.acquire[job.state] then
    local waiting = waiting_key(lane_waited_in(job))
    did('waiting', redis.call('ZADD', waiting, 'NX', job.created_us, id), id)
    if has_turns(job) and not (redis.call('ZSCORE', tenant_key(job.queue, job.tenant), id)
                               and redis.call('ZSCORE', turns_key(job.queue), job.tenant)) then
      join_turns(job.queue, job.tenant, job.created_us, id)
      give_turns()
      flush_writes()
      did('turns', 1, id)
    end
  end
  if not has_entry(id, job) then
    local stream = queue_key(job.queue)
    local named = entry_names(job)
    if is_entry_id(job.entry) and (named == id or not named) then
      redis.call('XACK', stream, GROUP, job.entry)
      redis.call('XDEL', stream, job.entry)
    end
    local entry = redis.call('XADD', stream, '*', 'job', id)
    redis.call('HSET', key('job', id), 'entry', entry)
    -- The holder renews it, or the reaper takes it.
    if FROM.requeue[job.state] then hand_out(job.queue, job.worker, {entry}) end
    wake_workers(job.pool, 1)
    did('entries', 1, id)
  end
end

-- What has ended expires by itself, some time before `sweep` takes its id out of the sets of its tenant, `rest`.
local function is_swept_later(id) return redis.call('ZSCORE', base .. WORD.expiring, id .. ' ' .. rest) end

if word == WORD.job then
  local live = {}
  for i = 3, #ARGV do
    local job = load_job(ARGV[i], TO_FIND)
    if job and FROM.expire[job.state] then
      job.id = ARGV[i]
      live[#live + 1] = job
    end
  end
  -- Those whose entries are gone line up again in the order in which they came.
  table.sort(live, function(a, b) return tonumber(a.created_us) < tonumber(b.created_us) end)
  for _, job in ipairs(live) do put_back(job.id, job) end
elseif word == WORD.queue then
  for i = 3, #ARGV do
    local entry = redis.call('XRANGE', queue_key(rest), ARGV[i], ARGV[i])[1]
    local id = entry and job_in(entry)
    local job = id and load_job(id, TO_FIND)
    if entry and not (job and job.queue == rest and job.entry == ARGV[i] and FROM.expire[job.state]) then
      redis.call('XACK', queue_key(rest), GROUP, ARGV[i])
      did('stray entries', redis.call('XDEL', queue_key(rest), ARGV[i]), id)
    end
  end
elseif word == WORD.log then
  for i = 3, #ARGV do
    -- A log gets its time to live with the end of its job; without a job it will never get one.
    if redis.call('EXISTS', key('job', ARGV[i])) == 0 and redis.call('PTTL', key('log', ARGV[i])) == -1 then
      did('stray logs', redis.call('DEL', key('log', ARGV[i])), ARGV[i])
    end
  end
elseif word == WORD.kept or word == WORD.conversations then
  for i = 3, #ARGV do
    local id = ARGV[i]
    local is_gone = id ~= TOTAL and redis.call('EXISTS', key(is_conversation(id) and 'conversation' or 'job', id)) == 0
    if is_gone and not is_swept_later(id) then
      if word == WORD.conversations then redis.call('ZREM', key('conversations', rest), id) end
      count_kept(rest, id, 0)
      did('stray ' .. word, 1, id)
    end
  end
else
  local set = base .. word .. (rest ~= '' and ':' .. rest or '')
  for i = 3, #ARGV do
    local job = load_job(ARGV[i], TO_FIND)
    local leads = job and FROM.expire[job.state]
    if word == WORD.jobs then
      leads = job or is_swept_later(ARGV[i])
    end
    if word == WORD.waiting then
      leads = job and FROM.acquire[job.state] and lane_waited_in(job) == rest
    end
    if not leads then did('stray ' .. word, redis.call('ZREM', set, ARGV[i]), ARGV[i]) end
  end
end

local reply = {}
for what, times in pairs(done) do
  reply[#reply + 1] = what
  reply[#reply + 1] = times
  reply[#reply + 1] = table.concat(ids[what], ' ')
end
return reply
