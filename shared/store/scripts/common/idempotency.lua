-- Idempotency keys: each names the job that the first call with it has made.

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

-- The job that a key names is gone.
local function drop_key(id, idempotency_key)
  local packed = redis.call('GET', idempotency_key)
  if packed and cmsgpack.unpack(packed)[1] == id then redis.call('UNLINK', idempotency_key) end
end
