-- Append one step's output of a worker to the logs of its jobs, end those that have ended, publish.
-- ARGV: worker, version ('': none), output, gateway, message...
--       output: msgpack of a Step (queue.py): {acknowledged, restarts, entries, ends, pool, room}; message: frames of `entries` and
--       `restarts`. An end is what `pack_end` makes. Its response and headers are as the record stores them; the entry of its frame,
--       '' if that is the entry itself, ends with the result, whose bytes the script appends (their msgpack head is there).
-- Reply: an Emitted (queue.py): {flat id, state, flat id, number, 1 if the worker has to claim, else 0, version, flat id, watchers,
--       watched}
-- Invariant: XADD refuses an entry of a generation that is over; no record is read for a token. No frame of a refused entry is published.
-- A repeated call changes nothing. A job whose log lacks entries is never completed.
local worker, version = ARGV[1], ARGV[2]
local acknowledged, restarts, entries, ends, pool, room = unpack(cmsgpack.unpack(ARGV[3]))
local refused, lost, short = {}, {}, {}
local DEAF_US, FORGOTTEN_US = 1000000, 3000000

local function refuse(id)
  if not refused[id] then lost[#lost + 1] = id end
  refused[id] = true
end

local function split(entry_id)
  local generation, number = string.match(entry_id, '^(%d+)-(%d+)$')
  return tonumber(generation), tonumber(number)
end

-- After a lost connection Redis may have lost its last writes. The record says who has the job, the log must reach as far as it did.
local function check(id, generation, number)
  local job = load_job(id)
  if not job or job.generation ~= generation then return refuse(id) end
  local last, n, length = last_of(id)
  if ENDS[job.state] or last == generation and n >= number and n == length then return end
  if last == generation and n == length then
    refused[id], short[#short + 1], short[#short + 2] = true, id, n
  else
    take(id, job, 'failed', 'log_lost')
    refuse(id)
  end
end

-- Whether the first call has appended the entry.
local function is_repeated(id, entry_id)
  return #acknowledged > 0 and #redis.call('XRANGE', key('log', id), entry_id, entry_id) == 1
end

-- Returns whether the entry was appended now.
local function append(id, entry_id, entry)
  local reply = redis.pcall('XADD', key('log', id), 'NOMKSTREAM', entry_id, 'd', entry)
  if type(reply) == 'string' then return true end
  if reply and is_repeated(id, entry_id) then return false end
  if not reply then check(id, split(entry_id)) end -- there is no log
  refuse(id)
  return false
end

-- The answer begins anew, unless a client may have seen it. Progress counts from here: beyond what void answers had.
local function restart(id, entry_id, code)
  local job, generation, number = load_job(id), split(entry_id)
  if not job or job.generation ~= generation or ENDS[job.state] then return refuse(id) end
  if is_repeated(id, entry_id) then return end
  if is_seen(job) then
    take(id, job, 'failed', code)
    return refuse(id)
  end
  if not append(id, entry_id, event_entry('restarted')) then return end
  job.start, job.best = number, math.max(job.best, number - 1 - job.start)
  redis.call('HSET', key('job', id), 'lease', pack_lease(job))
end

-- The end is the last entry of the worker's own generation. Whether the log has all others is known before.
local function end_job(id, entry_id, entry, state, code, frame_entry, result, response, headers, first_us, prompt_tokens, cached_tokens,
                       tokens, bytes)
  local generation, number = split(entry_id)
  local is_lost = redis.call('XLEN', key('log', id)) ~= number - 1
  if is_lost then entry = end_entry('failed') end
  if not append(id, entry_id, entry) then return end
  local job = load_job(id)
  if not job then return redis.call('PEXPIRE', key('log', id), COUNTED_MS) end -- only the record is lost
  if ENDS[job.state] then return end -- by its damage
  if is_lost then
    drop_pieces(id)
    finish(id, job, number, 'failed', 'log_lost', {})
    return tell(job.watchers, frame(id, generation, number, entry))
  end
  local fields = {'response', response}
  if result ~= '' then fields[3], fields[4] = 'result', result end
  if headers ~= '' then fields[#fields + 1], fields[#fields + 2] = 'headers', headers end
  if first_us > 0 then fields[#fields + 1], fields[#fields + 2] = 'first_us', int(first_us) end
  -- A long answer is there already, in pieces (store_piece.lua).
  job.result_bytes, job.reported = bytes, {prompt_tokens, cached_tokens, tokens}
  finish(id, job, number, state, code, fields)
  tell(job.watchers, frame(id, generation, number, frame_entry == '' and entry or frame_entry .. result))
end

-- A gateway that has missed a marker would take a frame of an entry that is in no log.
local function without_refused(message)
  local kept, at = {}, 0
  while at >= 0 and at < #message do
    local behind, found = cmsgpack.unpack_one(message, at)
    if not refused[found[1]] then kept[#kept + 1] = string.sub(message, at + 1, behind > 0 and behind or #message) end
    at = behind
  end
  return table.concat(kept)
end

-- A gateway that has not received frames twice is gone: it follows no job of this worker any more.
local function note_deaf(gateway)
  local now, since = now_us(), tonumber(redis.call('HGET', base .. 'deaf', gateway) or '')
  if not since or now - since > FORGOTTEN_US then
    redis.call('HSET', base .. 'deaf', gateway, int(now))
  elseif now - since >= DEAF_US then
    redis.call('HDEL', base .. 'deaf', gateway)
    for _, held in ipairs(held_by(worker, 1000000)) do
      local job = load_job(held[1])
      if job then unwatch(held[1], job, gateway) end
    end
  end
end

-- A worker whose jobs have ended is idle, or has to claim, which costs a call.
local function tell_room()
  if room == 0 or redis.call('EXISTS', key('first', pool)) == 1 then return 1 end
  for _, lane in ipairs(LANES) do
    if redis.call('EXISTS', key('turns', pool .. ':' .. lane)) == 1 then return 1 end
  end
  note_idle(pool, worker, room, true)
  return 0
end

for i = 1, #acknowledged, 3 do check(acknowledged[i], acknowledged[i + 1], acknowledged[i + 2]) end
for i = 1, #restarts, 3 do
  if not refused[restarts[i]] then restart(restarts[i], restarts[i + 1], restarts[i + 2]) end
end
for i = 1, #entries, 3 do
  if not refused[entries[i]] then append(entries[i], entries[i + 1], entries[i + 2]) end
end
local some_refused = next(refused)
for i = 4, #ARGV, 2 do
  local message = some_refused and without_refused(ARGV[i + 1]) or ARGV[i + 1]
  if message ~= '' then tell(ARGV[i], message) end
end
for _, last in ipairs(ends) do
  if not refused[last[1]] then end_job(unpack(last)) end
end
for _, gateway in ipairs(publish_frames()) do note_deaf(gateway) end

local states = {}
for i, id in ipairs(lost) do states[2 * i - 1], states[2 * i] = id, redis.call('HGET', key('job', id), 'state') or 'gone' end
local reply, followed = {states, short, tell_room(), version}, key('followed', worker)
if redis.call('EXISTS', followed) == 1 then
  if version ~= '' then redis.call('ZREMRANGEBYSCORE', followed, '-inf', version) end
  local changed = redis.call('ZRANGE', followed, 0, -1, 'WITHSCORES')
  for i = 1, #changed, 2 do
    local watchers, watched = unpack(redis.call('HMGET', key('job', changed[i]), 'watchers', 'watched'))
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = changed[i], watchers or '', watched or ''
    reply[4] = changed[i + 1]
  end
end
return reply
