-- What all scripts share. scripts.py puts these tables before this text: WORD (keys.py), CHANNEL, GROUP,
-- FROM and TO (states.py: event -> allowed states, event -> state), KIND (channel.py), STEPS, REQUEST and
-- LEASE (record.py). It is run once, when the scripts are loaded; `begin` runs before each call.
--
-- Every script validates first and writes last, and may be repeated: a call whose reply was lost is
-- sent again.

-- KEYS[1] is the base of one shard's keys; the others are made from it and share its hash tag.
local base
-- What this call knows and has put down so far.
local read_us, lease_ids, drafts, places, requests
local function begin(keys)
  base = keys[1]
  read_us, lease_ids, drafts, places, requests = nil, 0, {}, {}, {}
end

local function key(word, id) return base .. WORD[word] .. ':' .. id end
local function queue_key(name) return base .. WORD.queue .. ':' .. name end
local function waiting_key(name) return base .. WORD.waiting .. ':' .. name end

-- Microseconds by Redis' clock: no two machines' clocks are compared anywhere.
local function now_us()
  if not read_us then
    local t = redis.call('TIME')
    read_us = t[1] * 1000000 + t[2]
  end
  return read_us
end
local function int(x) return string.format('%d', x) end

-- Whether a worker may write: `fence_token` is what it knows of its jobs, all of it (step_log.py).
local function knows(worker, fence_token) return redis.call('GET', key('fence', worker)) == fence_token end
-- A job in a worker's hands is not what it was: the worker has to ask before it writes again.
local function invalidate_fence(worker) redis.call('DEL', key('fence', worker)) end

-- What a script puts down here it writes in the end, one command for all members of a key: the
-- writes of a step or a batch of jobs cost a fraction of what they would one by one. Nothing that is
-- put down is read again by the same script.
local function later(command, place, ...)
  local name = command .. place
  local draft = drafts[name]
  if not draft then
    draft = {command}
    if place ~= '' then draft[2] = place end
    if command == 'XACK' then draft[3] = GROUP end
    drafts[name] = draft
    places[#places + 1] = name
  end
  for _, word in ipairs({...}) do draft[#draft + 1] = word end
  if #draft > 4000 then redis.call(unpack(draft)); drafts[name] = nil end
end
local function write_down()
  for _, name in ipairs(places) do
    if drafts[name] then redis.call(unpack(drafts[name])) end
  end
  drafts, places = {}, {}
end

-- The words of a packed array under these names; nil if that is none (a person has changed it).
local function unpacked(names, packed)
  local fine, words = pcall(cmsgpack.unpack, packed)
  if not fine or type(words) ~= 'table' or #words < #names then return nil end
  local result = {}
  for i, name in ipairs(names) do result[name] = words[i] end
  return result
end
-- What finds a job's request in the job itself: `job.pool`. Many jobs of a call have the same one.
local function request_of(packed)
  requests[packed] = requests[packed] or {__index = unpacked(REQUEST, packed)}
  return requests[packed]
end
local NO_LEASE = {worker = '', lease_id = '', generation = 0, attempts = 0, lease_ms = '0', started_us = '0'}

-- What is read of a job to end it; to give it to a worker; to take it back; to find it.
local TO_END = {'deadline_us', 'log_lost'}
local TO_LEASE = {'deadline_us', 'watchers', 'watched', 'created_us', 'body'}
local TO_TAKE_BACK = {'deadline_us', 'watchers', 'watched', 'created_us', 'history'}
local TO_FIND = {'deadline_us', 'created_us'}
-- A job with these fields ('' if it has no such), its request's and its lease's; nil if there is none.
local function load_job(id, fields)
  local values = redis.call('HMGET', key('job', id), 'state', 'request', 'entry', 'queue', 'lease', unpack(fields))
  if not values[1] or not values[2] then return nil end
  local job = values[5] and unpacked(LEASE, values[5])
  if not job then
    job = {}
    for name, value in pairs(NO_LEASE) do job[name] = value end
  end
  setmetatable(job, request_of(values[2]))
  if not job.pool then return nil end
  job.state, job.entry, job.queue = values[1], values[3] or '', values[4] or job.pool .. ':' .. job.lane
  for i, name in ipairs(fields) do job[name] = values[5 + i] or '' end
  return job
end

-- Whether the lease with this lease id still holds the job.
local function held(job, lease_id) return FROM.complete[job.state] and job.lease_id == lease_id and lease_id ~= '' end

local function publish(watchers, frame)
  for gateway in string.gmatch(watchers, '%S+') do
    redis.call('PUBLISH', CHANNEL.tokens .. gateway, frame)
  end
end

-- The number that a job's next entry has after this segment of its log.
local function behind(segment)
  local _, first, count = cmsgpack.unpack_limit(segment, 2)
  return first + count
end
local function next_seq(id)
  local last = redis.call('LINDEX', key('log', id), -1)
  return last and behind(last) or 1
end

local function pack_segment(first, entries)
  return cmsgpack.pack(first) .. cmsgpack.pack(#entries) .. table.concat(entries)
end

-- Step logs outlive their worker by this much at most.
local DAY_MS = 86400000

-- The number of a segment's first entry.
local function first_of(segment)
  local _, first = cmsgpack.unpack_one(segment, 0)
  return first
end

-- Append a segment to a job's log, unless the log holds it already (a repeated call). Where the log lacks
-- entries before it (Redis lost them, or a person deleted them), that is noted: the job can't be completed
-- any more (emit.lua). A log whose job is gone has no time to live, so it is deleted.
local function append(id, segment)
  local first, next, job = first_of(segment), next_seq(id), key('job', id)
  if first < next then return end
  if redis.call('EXISTS', job) == 0 then
    redis.call('DEL', key('log', id))
    return
  end
  if first > next then redis.call('HSET', job, 'log_lost', '1') end
  redis.call('RPUSH', key('log', id), segment)
end

-- What a job's worker has said from number `from` on, if that is in its step log: segments, more than
-- one only where Redis has lost what was between them.
local function tail(id, job, from)
  local head, generation = string.char(150) .. cmsgpack.pack(id), job.generation
  local steps = redis.call('LRANGE', key('steps', job.worker), 0, -1)
  local segments, first, entries = {}, from, {}
  local function close_segment()
    if #entries > 0 then segments[#segments + 1] = pack_segment(first, entries) end
  end
  for i = 1, #steps - 1, 2 do
    local frames = steps[i + 1]
    local at = string.find(frames, head, 1, true)
    local sizes, n, begin_at = at and cmsgpack.unpack(steps[i]), 1, 1
    while at do
      -- Text may spell anything, so only what stands where a frame begins is one.
      while begin_at < at do begin_at, n = begin_at + sizes[n], n + 1 end
      if begin_at == at then
        local place, seq, of_generation = cmsgpack.unpack_limit(frames, 2, at - 1 + #head)
        if of_generation == generation and seq > first + #entries then
          close_segment()
          first, entries = seq, {}
        end
        if of_generation == generation and seq == first + #entries then
          entries[#entries + 1] = string.sub(frames, place + 2, at - 1 + sizes[n]) -- a byte tells the kind
        end
      end
      at = string.find(frames, head, at + 1, true)
    end
  end
  close_segment()
  return segments
end

-- What a job's worker has said is in the job's log, whatever becomes of the worker.
local function settle(id, job)
  if not FROM.complete[job.state] then return end
  for _, segment in ipairs(tail(id, job, next_seq(id))) do append(id, segment) end
end

-- Wake up to `times` idle workers of a pool.
local function ring(pool, times)
  local wake_ups, rings = key('wake_ups', pool), {}
  for n = 1, math.min(times, 64 - redis.call('LLEN', wake_ups)) do rings[n] = 1 end
  if #rings > 0 then redis.call('RPUSH', wake_ups, unpack(rings)) end
end

-- The sets of a pool's waiting jobs; those exist in which one does.
local function waiting_keys(pool)
  local names = {}
  for i, lane in ipairs(CLIENT_LANES) do names[i] = waiting_key(pool .. ':' .. lane) end
  return names
end

-- A worker that has slots to spare is told of a job in the step that submits it. A member of `offers`:
local function advertiser(worker, lease_ms) return worker .. ' ' .. lease_ms end
-- How many jobs a worker was told of that it had not heard of when it said that `told` slots were left
-- of what it offered; 0 where it can't say.
local function unheard(pool, who, told)
  local left = told ~= '' and redis.call('ZSCORE', key('advertised', pool), who)
  return left and math.max(0, told - left) or 0
end
-- Those on their way are counted down in advance; with more of them than slots it is below zero.
local function offer(pool, who, slots, on_their_way)
  redis.call('ZADD', key('advertised', pool), slots - on_their_way, who)
end

-- Take a job's entry out of its queue, delivered or not. (The group's lag is not known for a while
-- after an undelivered one was deleted. Depths are counted by the `waiting` sets, which are exact.)
local function leave_queue(job)
  later('XACK', queue_key(job.queue), job.entry)
  later('XDEL', queue_key(job.queue), job.entry)
end

-- The one way into a terminal state. `fields` go to the job's hash, `segment`, if there is one, to its
-- log; the caller tells the readers, and writes down. `tokens`: how many the job generated, nil if its
-- worker did not say; the last entry carries it.
local function finish(id, job, event, code, seq, fields, segment, tokens)
  local state, job_key, log_key = TO[event], key('job', id), key('log', id)
  leave_queue(job)
  if code ~= '' then
    fields[#fields + 1] = 'error_code'
    fields[#fields + 1] = code
  end
  redis.call('HSET', job_key, 'state', state, 'finished_us', int(now_us()), unpack(fields))
  local last = pack_segment(seq, {cmsgpack.pack(tokens) .. cmsgpack.pack(state)})
  if segment then
    redis.call('RPUSH', log_key, segment, last)
  else
    redis.call('RPUSH', log_key, last)
  end
  if FROM.acquire[job.state] then later('ZREM', waiting_key(job.pool .. ':' .. job.lane), id) end
  if job.deadline_us ~= '' then later('ZREM', base .. WORD.deadlines, id) end
  redis.call('PEXPIRE', job_key, job.ttl_ms)
  redis.call('PEXPIRE', log_key, job.ttl_ms)
  later('ZADD', base .. WORD.expiring, int(now_us() + job.ttl_ms * 1000), id .. ' ' .. job.tenant)
end

-- The job ends without its worker's word.
local function close(id, job, event, code, fields)
  settle(id, job)
  local seq = next_seq(id)
  finish(id, job, event, code, seq, fields)
  write_down()
  publish(job.watchers, cmsgpack.pack({id, seq, job.generation, KIND.ended, '', ''}))
end

-- A client or the clock ends a job: its worker, if it has one, hears of it at once by this hint, and
-- for certain by its next refused write.
local function revoke(id, job, event, code)
  close(id, job, event, code, {})
  if job.state == 'in_progress' then
    invalidate_fence(job.worker)
    redis.call('PUBLISH', CHANNEL.control .. job.worker, cmsgpack.pack({CONTROL.drop, id}))
  end
end

-- At most `count` entries of a lane that nobody was given yet; they are this worker's now.
local function read(name, worker, count)
  local stream = queue_key(name)
  local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', count, 'STREAMS', stream, '>')
  if reply and reply.err then -- no group yet: from the start of the stream, so that nothing is missed
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    reply = redis.call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', count, 'STREAMS', stream, '>')
  end
  return reply and reply[1] and reply[1][2] or {}
end

-- The job that an entry just read leads to: id and job if it may be leased, else nil.
local function open(name, entry)
  local id = entry[2][2]
  local job = load_job(id, TO_LEASE)
  local its_own = job and job.queue == name and job.entry == entry[1]
  if its_own and not FROM.acquire[job.state] and FROM.requeue[job.state] then
    -- The group was made anew while somebody holds the job: the entry stays, for the reaper to find.
    return nil
  end
  if not its_own or not FROM.acquire[job.state] then
    redis.call('XACK', queue_key(name), GROUP, entry[1])
    redis.call('XDEL', queue_key(name), entry[1])
    return nil
  end
  local deadline = tonumber(job.deadline_us) or 0
  if deadline > 0 and deadline <= now_us() then
    close(id, job, 'expire', 'deadline_exceeded', {})
    return nil
  end
  later('ZREM', waiting_key(job.pool .. ':' .. job.lane), id)
  return id, job
end

local function next_lease_id(seed)
  lease_ids = lease_ids + 1
  return seed .. string.format('%04x', lease_ids)
end

-- Give a job whose entry the worker has read to that worker. `now` in digits; `fields` go to the job's
-- hash as well. Returns what the worker has to know.
local function lease(id, job, worker, lease_ms, lease_id, now, fields)
  local attempts, generation = job.attempts + 1, job.generation + 1
  redis.call('HSET', key('job', id), 'state', TO.acquire,
             'lease', cmsgpack.pack({worker, lease_id, generation, attempts, lease_ms, now}), unpack(fields))
  if job.watched == '1' then publish(job.watchers, cmsgpack.pack({id, 0, generation, KIND.started, '', worker})) end
  return {id, lease_id, generation, attempts, job.created_us, job.stream, job.endpoint, job.body, job.watchers, job.watched}
end

-- The fencing token in which a worker gets jobs; '' if it is in none.
local function fence_token_of(worker) return redis.call('GET', key('fence', worker)) or '' end

-- Something of the answer may have reached a client, so another worker may not start it anew. The first
-- entry of an attempt is in its log before it is published (emit.lua), so an empty log proves the contrary.
local function answered(id, job)
  if job.stream ~= '1' and job.watched ~= '1' then return false end
  settle(id, job)
  return redis.call('EXISTS', key('log', id)) == 1
end

-- A job whose worker does not hold it any more: back to the queue if nobody has seen anything of the
-- answer, else it fails. `blame` counts the attempt against the job (its worker was lost with it).
local function give_back(id, job, reason, blame)
  local history = job.history ~= '' and cjson.decode(job.history) or {}
  history[#history + 1] = {worker = job.worker, started_us = job.started_us,
                           ended_us = int(now_us()), reason = reason}
  invalidate_fence(job.worker)
  local fields = {'history', cjson.encode(history)}
  if answered(id, job) then
    close(id, job, 'fail', 'worker_lost', fields)
    return 'failed'
  end
  if blame and job.attempts >= tonumber(job.max_attempts) then
    redis.call('XADD', base .. WORD.dead_letters, 'MAXLEN', '~', 10000, '*', 'job', id, 'attempts', job.attempts,
               'reason', reason)
    close(id, job, 'fail', 'too_many_attempts', fields)
    return 'failed'
  end
  leave_queue(job)
  write_down()
  redis.call('DEL', key('log', id))
  redis.call('HDEL', key('job', id), 'log_lost')
  local queue = job.pool .. ':' .. RETRY_LANE
  local entry = redis.call('XADD', queue_key(queue), '*', 'job', id)
  local left = {'', '', job.generation, job.attempts - (blame and 0 or 1), job.lease_ms, ''}
  redis.call('HSET', key('job', id), 'state', TO.requeue, 'queue', queue, 'entry', entry,
             'lease', cmsgpack.pack(left), unpack(fields))
  redis.call('ZADD', waiting_key(job.pool .. ':' .. job.lane), job.created_us, id)
  ring(job.pool, 1)
  return 'queued'
end
