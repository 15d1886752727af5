-- Dead letters: data that can't be read is moved to a stream, with its bytes and the reason, and counted.
local LETTER_BYTES = 4096 -- of one value; of a longer one also its length and SHA-1 are kept
local LETTERS = 1000 -- per shard, about

-- Count in a hash of counters; one that can't be used begins anew.
local function count_in(counters, field)
  local done = redis.pcall('HINCRBY', counters, field, 1)
  if type(done) == 'table' and done.err then
    redis.call('DEL', counters)
    redis.call('HINCRBY', counters, field, 1)
  end
end

local function dead_letter(what, id, reason, values)
  local letter = {'what', what, 'id', id, 'reason', reason}
  for name, value in pairs(values) do
    letter[#letter + 1] = 'value:' .. name
    letter[#letter + 1] = string.sub(value, 1, LETTER_BYTES)
    if #value > LETTER_BYTES then
      for _, word in ipairs({'size:' .. name, #value, 'sha1:' .. name, redis.sha1hex(value)}) do
        letter[#letter + 1] = word
      end
    end
  end
  local letters = base .. WORD.dead_letters
  local done = redis.pcall('XADD', letters, 'MAXLEN', '~', LETTERS, '*', unpack(letter))
  if type(done) == 'table' and done.err then -- the stream itself is of the wrong type
    redis.call('DEL', letters)
    redis.call('XADD', letters, '*', unpack(letter))
  end
  count_in(base .. WORD.dead_letter_counts, what)
end

local function is_wrong_type(reply)
  return type(reply) == 'table' and reply.err and string.find(reply.err, 'WRONGTYPE', 1, true)
end

-- A key that was overwritten with another type.
local function set_aside_key(name)
  local dump, of_log = redis.call('DUMP', name), base .. WORD.log .. ':'
  if not dump then return end
  dead_letter('key', name, 'wrong type: ' .. redis.call('TYPE', name).ok, {dump = dump})
  redis.call('DEL', name)
  if string.sub(name, 1, #of_log) == of_log then
    local job = key('job', string.sub(name, #of_log + 1))
    if redis.call('EXISTS', job) == 1 then redis.pcall('HSET', job, 'log_lost', '1') end
  end
end

-- redis.call, but a key of the wrong type is set aside and the command repeated without it: one broken
-- key does not stop the jobs of the others.
local KEY_AT = {XGROUP = 3, XINFO = 3}
local function call(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    if is_wrong_type(reply) then set_aside_key((select(KEY_AT[(...)] or 2, ...))) end
    return redis.call(...)
  end
  return reply
end
