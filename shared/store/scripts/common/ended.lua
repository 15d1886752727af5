-- The stream `ended`: an entry for each end of a job or batch, in the call that ends it. Maintenance reads it for the sums of
-- use and for webhooks, each from its own position. It has no text of the request or of the answer.
-- An entry is a msgpack array in the field `e` (ended.py): id, tenant, key, model, state, the webhook endpoints that get its end, reserved
-- tokens, tokens of the prompt, those of it that were cached, tokens of the answer (the first and the last are false where no worker has
-- reported them: the job's log tells, or where it has no prompt, the second: bytes of the body if a worker has had the job, else 0),
-- microseconds in the queue, with an engine, and of these wasted.

-- The attempts that were taken back: {worker, start, end, reason, entries}; nil if they can't be read.
local function unpacked_history(job)
  if job.history == '' then return {} end
  local fine, attempts = pcall(cmsgpack.unpack, job.history)
  for _, attempt in ipairs(fine and type(attempts) == 'table' and attempts or {false}) do
    if type(attempt) ~= 'table' or #attempt ~= 5 then return nil end
  end
  return attempts
end

-- Microseconds before the first start, of all attempts, and of those whose output is not in the answer.
local function times_of(job)
  local now = now_us()
  local first, engine, wasted = now, 0, 0
  if job.worker ~= '' then first, engine = job.started_us, math.max(0, now - job.started_us) end
  for _, attempt in ipairs(unpacked_history(job) or {}) do
    local _, from, to, _, entries = unpack(attempt)
    first, engine = math.min(first, from), engine + math.max(0, to - from)
    if entries == 0 or job.start > 0 then wasted = wasted + math.max(0, to - from) end
  end
  return math.max(0, first - (tonumber(job.created_us) or now)), engine, wasted
end

-- An engine may have computed the prompt of a job that has no output.
local function begun_bytes(id, job)
  if (job.claims or 0) == 0 then return 0 end
  return tonumber(job.body_bytes) or redis.call('HSTRLEN', key('job', id), 'body')
end

-- `job`: a job, or of a batch its `tenant` and `notify`. `job.reported`: {tokens of the prompt, cached ones, tokens of the answer}, if
-- its worker has reported them.
local function note_end(id, state, job)
  local reported = job.reported or {false, begun_bytes(id, job), false}
  redis.call('XADD', base .. 'ended', '*', 'e',
             cmsgpack.pack({id, job.tenant or '', job.key or '', job.model or '', state, job.notify or '', job.reserved or '',
                            reported[1], reported[2], reported[3], times_of(job)}))
end

-- Move a reader's position in a shard's stream, in the call that stores what it has made of the entries: so they are used
-- once. False if another process has used these, or some of them.
local function advance(reader, after, upto)
  local positions = base .. 'ended_read'
  if (redis.call('HGET', positions, reader) or '') ~= after then return false end
  redis.call('HSET', positions, reader, upto)
  return true
end
