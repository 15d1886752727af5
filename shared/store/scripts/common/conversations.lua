-- Conversations: a hash, the order of its items, and the items. One response at a time is made of each: `job` names
-- it, and `pending` has its input, until it has ended and its items are added (extend_conversation.lua).

local function is_conversation(id) return string.sub(id, 1, #CONVERSATION_PREFIX) == CONVERSATION_PREFIX end

local function conversation_keys(id)
  return {key('conversation', id), key('conversation_order', id), key('conversation_items', id)}
end

-- What an item takes, with its place in the order.
local function item_cost(id, json) return ITEM_BYTES + cost(#id + #json) end

-- A change: whoever has read the conversation before can't begin a response with what it has read.
local function change_conversation(id, ttl_ms)
  redis.call('HINCRBY', key('conversation', id), 'version', 1)
  for _, name in ipairs(conversation_keys(id)) do redis.call('PEXPIRE', name, ttl_ms) end
end

-- Why a job can't be the next response of a conversation (`turn` as in submit.lua); nil if it can.
local function turn_problem(turn)
  local version = redis.call('HGET', key('conversation', turn[1]), 'version')
  if not version then return 'gone' end
  if version ~= turn[2] then return 'locked' end
end

local function begin_turn(job, turn)
  redis.call('HSET', key('conversation', turn[1]), 'job', job, 'pending', turn[3], 'head', turn[4])
  change_conversation(turn[1], turn[5])
end
