-- Read at most `count` entries of a pool's lanes, best lane first, and lease each job to one worker.
-- KEYS: base.  ARGV: pool, worker, count, lease in ms, nonce seed (12 characters; 4 are added for
--       each job), then the lanes.
-- Returns {now in us, job, ...}, a job being {id, nonce, attempt, created_us, stream, endpoint, body}.
-- Invariant: reading and leasing are one step, so no worker ever holds an entry that it has no slot for.
local pool, worker, count, lease_ms, seed = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local ROUNDS = 64
local now = now_us()
local taken = {int(now)}

local function read(stream, n)
  local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', n, 'STREAMS', stream, '>')
  if reply and reply.err then -- no group yet: from the start of the stream, so that nothing is missed
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    reply = redis.call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', n, 'STREAMS', stream, '>')
  end
  return reply and reply[1] and reply[1][2] or {}
end

local function lease(id, job)
  local nonce = seed .. string.format('%04x', #taken)
  local attempt = tonumber(job.attempts) + 1
  redis.call('HSET', key('job', id), 'state', TO.acquire, 'worker', worker, 'nonce', nonce,
             'attempts', attempt, 'started_us', int(now), 'lease_ms', lease_ms)
  redis.call('SET', key('lease', id), nonce .. (job.watched == '1' and '1' or '0') .. job.watchers)
  later('ZREM', waiting_key(job.pool .. ':' .. job.lane), id)
  if job.watched == '1' then publish(job.watchers, cmsgpack.pack({id, 0, KIND.started, worker})) end
  taken[#taken + 1] = {id, nonce, attempt, job.created_us, job.stream, job.endpoint, job.body}
end

local empty = true
for i = 6, #ARGV do
  local name = pool .. ':' .. ARGV[i]
  local stream = queue_key(name)
  -- Entries that lead to no job take no slot, so read on; ROUNDS bounds one call.
  for round = 1, ROUNDS do
    local free = count - (#taken - 1)
    if free <= 0 then empty = false; break end
    local entries = read(stream, free)
    for _, entry in ipairs(entries) do
      local id = entry[2][2]
      local job = load_job(id, TO_LEASE)
      local its_own = job and job.queue == name and job.entry == entry[1]
      if its_own and not FROM.acquire[job.state] and FROM.requeue[job.state] then
        -- The group was made anew while somebody holds the job: the entry stays, for the reaper to find.
      elseif not its_own or not FROM.acquire[job.state] then
        redis.call('XACK', stream, GROUP, entry[1])
        redis.call('XDEL', stream, entry[1])
      else
        local deadline = tonumber(job.deadline_us) or 0
        if deadline > 0 and deadline <= now then
          close(id, job, 'expire', 'deadline_exceeded', {})
        else
          lease(id, job)
        end
      end
    end
    if #entries < free then break end
    if round == ROUNDS then empty = false end
  end
end
local bell = key('bell', pool)
if empty then
  redis.call('DEL', bell)
elseif redis.call('LLEN', bell) == 0 then
  ring(pool, 1) -- more may wait: who listens now must hear of it
end
write_down()
return taken
