-- Make a conversation, add items to it, or end its response: its items are added, if it was completed.
-- ARGV: conversation, items, ttl_ms, max_items, max_bytes, tenant, created_at, metadata, job, completed, room (4)
--       items: msgpack array, flat id, JSON, ...; max_items, max_bytes: of the conversation; created_at: '' unless it is
--       made; job: of the response that has ended, else ''; completed: '1' if its input and `items`, its output, are added
-- Reply: {status, value}: 'ok'; 'gone'; 'busy', id of the response's job that has to end first; 'known', id of an item
--       that the conversation has already; 'items' or 'bytes', the conversation's limit; 'quota' or 'memory', what the
--       tenant keeps
-- Invariant: an item is added once, with a number above all before it. A response's items are added once, in one
--       piece. From then on the job's record has no input: it is the conversation's items up to `upto`.
local id, items, ttl_ms, tenant, job = ARGV[1], cmsgpack.unpack(ARGV[2]), ARGV[3], ARGV[6], ARGV[9]
local MANY = 1000
local conversation, order, stored = unpack(conversation_keys(id))
local found = redis.call('HMGET', conversation, 'tenant', 'bytes', 'next', 'job', 'pending', 'head', 'kept')
local is_new = not found[1]
local bytes, last, before = tonumber(found[2]) or 0, tonumber(found[3]) or 0, tonumber(found[7]) or 0
local kept = is_new and RECORD_BYTES + cost(#ARGV[8]) or before

if is_new and ARGV[7] == '' then return {'gone', ''} end
if not is_new and ARGV[7] ~= '' then return {'ok', ''} end -- a repeated call has made it
if job ~= '' and found[4] ~= job then return {'ok', ''} end -- its items are there already
if job == '' and found[4] then return {'busy', found[4]} end

-- Those of the items that the conversation has not, and one that it has with another content.
local function new_items(flat)
  local new, seen, other = {}, {}, nil
  for from = 1, #flat, 2 * MANY do
    local ids = {}
    for i = from, math.min(#flat, from + 2 * MANY - 1), 2 do ids[#ids + 1] = flat[i] end
    local scores = redis.call('ZMSCORE', order, unpack(ids))
    for n, item in ipairs(ids) do
      local json = flat[from + 2 * n - 1]
      if scores[n] or seen[item] then
        if seen[item] or redis.call('HGET', stored, item) ~= json then other = item end
      else
        seen[item] = true
        new[#new + 1] = item
        new[#new + 1] = json
      end
    end
  end
  return new, other
end

-- The texts' bytes, and what they take.
local function sizes_of(flat)
  local size, taken = 0, 0
  for i = 1, #flat, 2 do
    size = size + #flat[i] + #flat[i + 1]
    taken = taken + item_cost(flat[i], flat[i + 1])
  end
  return size, taken
end

local function add(flat)
  for i = 1, #flat, 2 do
    last = last + 1
    defer('ZADD', order, last, flat[i])
    defer('HSET', stored, flat[i], flat[i + 1])
  end
  local size, taken = sizes_of(flat)
  bytes, kept = bytes + size, kept + taken
end

if job == '' then
  local new, other = new_items(items)
  local size, taken = sizes_of(new)
  if other then return {'known', other} end
  if redis.call('ZCARD', order) + #new / 2 > tonumber(ARGV[4]) then return {'items', ARGV[4]} end
  if bytes + size > tonumber(ARGV[5]) then return {'bytes', ARGV[5]} end
  local what, own = too_much(tenant, kept + taken - before, room_of(unpack(ARGV, 11, 14)))
  if what then return {what, own} end
  add(new)
elseif ARGV[10] == '1' then
  local fine, pending = pcall(cmsgpack.unpack, found[5] or '')
  local own = fine and type(pending) == 'table' and pending or {}
  add((new_items(own)))
  flush_writes()
  local more = found[6] and replace_rest(job, tonumber(found[6]), ', "input": []}')
  if more then
    redis.call('HSET', key('job', job), 'upto', int(last))
    recount_job(job, tenant, more)
  end
  add((new_items(items)))
end

if is_new then
  redis.call('HSET', conversation, 'tenant', tenant, 'created_at', ARGV[7], 'metadata', ARGV[8])
  redis.call('ZADD', key('conversations', tenant), int(now_us()), id)
end
flush_writes()
redis.call('HSET', conversation, 'bytes', int(bytes), 'next', int(last), 'kept', int(kept))
if job ~= '' then
  redis.call('HDEL', conversation, 'job', 'pending', 'head')
  recount_job(job, tenant, -#(found[5] or ''))
end
change_conversation(id, ttl_ms)
count_anew('conversation:' .. id, tenant, before, kept, int(now_us() + ttl_ms * 1000))
return {'ok', ''}
