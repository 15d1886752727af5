-- The stream `ended`: an entry for each end of a job or batch, in the call that ends it. Maintenance reads it for the sums of
-- use and for webhooks, each from its own position. It has no text of the request or of the answer.
-- An entry is a msgpack array in the field `e` (ended.py): id, tenant, key, model, state, the webhook endpoints that get its end, reserved
-- tokens, tokens of the prompt, those of it that were cached, tokens of the answer (all three false: no worker has reported
-- them, the job's log tells), microseconds in the queue, with an engine, and of these wasted.

-- Microseconds before the first start, of all attempts, and of those whose output is not in the answer. `taken_back`: an
-- attempt was taken from its worker, so the record has a history.
local function times_of(id, job, taken_back)
  local now, started = now_us(), job.worker ~= '' and tonumber(job.started_us) or nil
  local first, engine, wasted = started or now, started and math.max(0, now - started) or 0, 0
  if taken_back then
    local values = redis.call('HMGET', key('job', id), 'history', 'restart_seq')
    local fine, history = pcall(cjson.decode, values[1] or '[]')
    for _, attempt in ipairs(fine and type(history) == 'table' and history or {}) do
      local from, to = tonumber(attempt.started_us) or now, tonumber(attempt.ended_us) or now
      first = math.min(first, from)
      -- The attempt that ends now may be in the history already.
      if from ~= started then engine = engine + math.max(0, to - from) end
      if attempt.entries == 0 or values[2] then wasted = wasted + math.max(0, to - from) end
    end
  end
  return math.max(0, first - (tonumber(job.created_us) or now)), engine, wasted
end

-- `job`: a job, or of a batch its `tenant` and `notify`. `job.reported`: {tokens of the prompt, cached ones, tokens of the
-- answer}, if its worker has reported them.
local function note_end(id, state, job, taken_back)
  local reported = job.reported or {false, false, false}
  redis.call('XADD', base .. WORD.ended, '*', 'e',
             cmsgpack.pack({id, job.tenant or '', job.key or '', job.model or '', state, job.notify or '', job.reserved or '',
                            reported[1], reported[2], reported[3], times_of(id, job, taken_back)}))
end

-- Move a reader's position in a shard's stream, in the call that stores what it has made of the entries: so they are used
-- once. False if another process has used these, or some of them.
local function advance(reader, after, upto)
  local positions = base .. WORD.ended_read
  if (redis.call('HGET', positions, reader) or '') ~= after then return false end
  redis.call('HSET', positions, reader, upto)
  return true
end
