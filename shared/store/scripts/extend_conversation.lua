-- Make a conversation, add items to it, or end its response: its items are added, if it was completed.
-- ARGV: conversation, items, ttl_ms, max_items, max_bytes, tenant, created_at, metadata, max_conversations, max_kept_bytes, job, completed
--       items: msgpack array, flat id, JSON, ...; max_items, max_bytes: of the conversation; created_at: '' unless it is
--       made; max_conversations, max_kept_bytes: of the tenant, 0: no limit; job: of the response that has ended, else
--       ''; completed: '1' if its input and `items`, its output, are added
-- Reply: {status, value}: 'ok'; 'gone'; 'busy', id of the response's job that has to end first; 'known', id of an item
--       that the conversation has already; 'items' or 'bytes', the conversation's limit; 'conversations' or 'kept', what
--       the tenant has
-- Invariant: an item is added once, with a number above all before it. A response's items are added once, in one
--       piece. From then on the job's record has no input: it is the conversation's items up to `upto`.
local id, items, ttl_ms, tenant, job = ARGV[1], cmsgpack.unpack(ARGV[2]), ARGV[3], ARGV[6], ARGV[11]
local MANY = 1000
local conversation, order, stored = unpack(conversation_keys(id))
local found = redis.call('HMGET', conversation, 'tenant', 'bytes', 'next', 'job', 'pending', 'head')
local is_new = not found[1]
local bytes, last = tonumber(found[2]) or 0, tonumber(found[3]) or 0

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

local function size_of(flat)
  local size = 0
  for _, text in ipairs(flat) do size = size + #text end
  return size
end

local function add(flat)
  for i = 1, #flat, 2 do
    last = last + 1
    defer('ZADD', order, last, flat[i])
    defer('HSET', stored, flat[i], flat[i + 1])
  end
  bytes = bytes + size_of(flat)
end

if job == '' then
  local new, other = new_items(items)
  local size = size_of(new)
  if other then return {'known', other} end
  if redis.call('ZCARD', order) + #new / 2 > tonumber(ARGV[4]) then return {'items', ARGV[4]} end
  if bytes + size > tonumber(ARGV[5]) then return {'bytes', ARGV[5]} end
  local conversations = is_new and redis.call('ZCARD', key('conversations', tenant)) or 0
  if is_new and conversations >= quota(ARGV[9]) then return {'conversations', int(conversations)} end
  if size > 0 and kept_bytes(tenant) + size > quota(ARGV[10]) then return {'kept', int(kept_bytes(tenant))} end
  add(new)
elseif ARGV[12] == '1' then
  local fine, pending = pcall(cmsgpack.unpack, found[5] or '')
  local own = fine and type(pending) == 'table' and pending or {}
  add((new_items(own)))
  flush_writes()
  local more = found[6] and replace_rest(job, tonumber(found[6]), ', "input": []}')
  if more then
    redis.call('HSET', key('job', job), 'upto', int(last))
    if redis.call('ZSCORE', key('kept', tenant), job) then count_kept(tenant, job, nil, more) end
  end
  add((new_items(items)))
end

if is_new then
  redis.call('HSET', conversation, 'tenant', tenant, 'created_at', ARGV[7], 'metadata', ARGV[8])
  redis.call('ZADD', key('conversations', tenant), int(now_us()), id)
  redis.call('ZADD', base .. 'expiring', int(now_us() + ttl_ms * 1000), id .. ' ' .. tenant)
end
flush_writes()
redis.call('HSET', conversation, 'bytes', int(bytes), 'next', int(last))
if job ~= '' then redis.call('HDEL', conversation, 'job', 'pending', 'head') end
change_conversation(id, ttl_ms)
count_kept(tenant, id, bytes)
return {'ok', ''}
