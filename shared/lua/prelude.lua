-- Put before every script. KEYS[1] is the base of one shard's keys; the others are made from it and
-- share its hash tag. scripts.py puts these tables before this text: WORD (keys.py), CHANNEL, GROUP,
-- FROM and TO (states.py: event -> allowed states, event -> state), KIND (channel.py).
--
-- Every script validates first and writes last, and may be repeated: a call whose reply was lost is
-- sent again.

local base = KEYS[1]
local NONCE = 16 -- characters of a lease nonce

local function key(word, id) return base .. WORD[word] .. ':' .. id end
local function queue_key(name) return base .. WORD.queue .. ':' .. name end
local function waiting_key(name) return base .. WORD.waiting .. ':' .. name end

-- Microseconds by Redis' clock: no two machines' clocks are compared anywhere.
local read_us
local function now_us()
  if not read_us then
    local t = redis.call('TIME')
    read_us = t[1] * 1000000 + t[2]
  end
  return read_us
end
local function int(x) return string.format('%.0f', x) end

-- The lease of a job if `nonce` still holds it: the fence of every write of a worker. A lease is the
-- nonce, '1' if somebody watches the job's events else '0', then the gateways that listen.
local function held(id, nonce)
  local lease = redis.call('GET', key('lease', id))
  if lease and #nonce == NONCE and string.sub(lease, 1, NONCE) == nonce then return lease end
  return nil
end

local JOB_FIELDS = {'state', 'queue', 'entry', 'pool', 'lane', 'attempts', 'watchers', 'worker',
                    'ttl_ms', 'stream', 'watched', 'created_us', 'started_us', 'history', 'nonce', 'lease_ms', 'tenant',
                    'max_attempts', 'deadline_us'}
local function load_job(id)
  local values = redis.call('HMGET', key('job', id), unpack(JOB_FIELDS))
  if not values[1] then return nil end
  local job = {}
  for i, name in ipairs(JOB_FIELDS) do job[name] = values[i] or '' end
  return job
end

local function publish(watchers, frame)
  for gateway in string.gmatch(watchers, '%S+') do
    redis.call('PUBLISH', CHANNEL.tokens .. gateway, frame)
  end
end

local function next_seq(id) return redis.call('LLEN', key('log', id)) + 1 end

-- Write entry number `seq` of a job's log; false if it stands there already (a repeated call). Where
-- Redis has lost entries before it, empty ones stand for them: a number never changes its meaning.
local function append(id, seq, entry)
  local log = key('log', id)
  local length = redis.call('RPUSH', log, entry)
  if length == seq then return true end
  redis.call('RPOP', log)
  if length > seq then return false end
  for _ = length, seq - 1 do redis.call('RPUSH', log, '') end
  redis.call('RPUSH', log, entry)
  return true
end

local function ring(pool)
  local bell = key('bell', pool)
  if redis.call('LLEN', bell) < 64 then redis.call('RPUSH', bell, 1) end
end

-- Take a job's entry out of its queue, delivered or not. (The group's lag is not known for a while
-- after an undelivered one was deleted. Depths are counted by the `waiting` sets, which are exact.)
local function leave_queue(job)
  redis.call('XACK', queue_key(job.queue), GROUP, job.entry)
  redis.call('XDEL', queue_key(job.queue), job.entry)
end

-- The one way into a terminal state. `fields` go to the job's hash; the caller tells the readers.
local function finish(id, job, event, code, seq, fields)
  local state = TO[event]
  leave_queue(job)
  redis.call('HSET', key('job', id), 'state', state, 'error_code', code, 'finished_us', int(now_us()),
             unpack(fields))
  redis.call('DEL', key('lease', id))
  append(id, seq, cmsgpack.pack(state))
  if FROM.acquire[job.state] then redis.call('ZREM', waiting_key(job.pool .. ':' .. job.lane), id) end
  if job.deadline_us ~= '' then redis.call('ZREM', base .. WORD.deadlines, id) end
  redis.call('PEXPIRE', key('job', id), job.ttl_ms)
  redis.call('PEXPIRE', key('log', id), job.ttl_ms)
  redis.call('ZADD', base .. WORD.expiring, int(now_us() + job.ttl_ms * 1000), id .. ' ' .. job.tenant)
end

-- The job ends without its worker's word.
local function close(id, job, event, code, fields)
  local seq = next_seq(id)
  finish(id, job, event, code, seq, fields)
  publish(job.watchers, cmsgpack.pack({id, seq, KIND.ended, ''}))
end

-- A client or the clock ends a job: its worker, if it has one, hears of it at once by this hint, and
-- for certain by its next refused write.
local function revoke(id, job, event, code)
  close(id, job, event, code, {})
  if job.state == 'in_progress' then redis.call('PUBLISH', CHANNEL.control .. job.worker, id) end
end

-- Something of the answer has been seen by a client, so another worker may not start it anew.
local function answered(id, job)
  return (job.stream == '1' or job.watched == '1') and redis.call('EXISTS', key('log', id)) == 1
end

-- A job whose worker does not hold it any more: back to the queue if nobody has seen anything of the
-- answer, else it fails. `blame` counts the attempt against the job (its worker was lost with it).
local function give_back(id, job, reason, blame)
  local history = job.history ~= '' and cjson.decode(job.history) or {}
  history[#history + 1] = {worker = job.worker, started_us = job.started_us,
                           ended_us = int(now_us()), reason = reason}
  local fields = {'history', cjson.encode(history)}
  if answered(id, job) then
    close(id, job, 'fail', 'worker_lost', fields)
    return 'failed'
  end
  if blame and tonumber(job.attempts) >= tonumber(job.max_attempts) then
    redis.call('XADD', base .. WORD.dead, 'MAXLEN', '~', 10000, '*', 'job', id, 'attempts', job.attempts,
               'reason', reason)
    close(id, job, 'fail', 'too_many_attempts', fields)
    return 'failed'
  end
  leave_queue(job)
  redis.call('DEL', key('lease', id), key('log', id))
  local queue = job.pool .. ':' .. RETRY_LANE
  local entry = redis.call('XADD', queue_key(queue), '*', 'job', id)
  redis.call('HSET', key('job', id), 'state', TO.requeue, 'queue', queue, 'entry', entry, 'nonce', '',
             'attempts', int(tonumber(job.attempts) - (blame and 0 or 1)), 'worker', '', unpack(fields))
  redis.call('ZADD', waiting_key(job.pool .. ':' .. job.lane), job.created_us, id)
  ring(job.pool)
  return 'queued'
end
