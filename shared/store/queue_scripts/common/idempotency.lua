-- What a submit has to agree with: idempotency keys, each of which names the job that the first call with it has made, and the turns of
-- conversations.

-- The status of a call whose key (its Redis key) an earlier call has used, and the id of that call's job; nil if the key is free. It is
-- free again if that job is gone, or was cancelled because no client followed it. made: the ids of jobs that this call is making.
local function key_user(id, idempotency_key, body_hash, made)
  local packed = redis.call('GET', idempotency_key)
  if not packed then return nil end
  local known = cmsgpack.unpack(packed)
  if known[1] == id then return nil end
  if not made[known[1]] then
    local job = redis.call('HMGET', key('job', known[1]), 'state', 'error_code')
    if not job[1] or job[2] == 'unattended' then return nil end
  end
  return known[2] == body_hash and 'joined' or 'reused', known[1]
end

-- Why a job can't be the next response of a conversation (`turn` as in submit.lua); nil if it can.
local function turn_problem(turn)
  local version = redis.call('HGET', key('conversation', turn[1]), 'version')
  if not version then return 'gone' end
  if version ~= turn[2] then return 'locked' end
end

-- A change of the conversation: whoever has read it before can't begin a response with what it has read.
local function begin_turn(job, turn)
  local conversation, ttl_ms = key('conversation', turn[1]), turn[5]
  redis.call('HSET', conversation, 'job', job, 'pending', turn[3], 'head', turn[4])
  redis.call('HINCRBY', conversation, 'version', 1)
  for _, word in ipairs({'conversation', 'conversation_order', 'conversation_items'}) do
    redis.call('PEXPIRE', key(word, turn[1]), ttl_ms)
  end
end
