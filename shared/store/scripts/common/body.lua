-- The body of a job's request: in its record, or, if it is large, a hash of pieces (queue.py).

local function has_body(id, bytes) return redis.call('HLEN', key('body', id)) == math.ceil(bytes / PIECE_BYTES) end

-- Replace what is behind the first so many bytes of a body. Returns how many more it has then; nil if there is none.
local function replace_rest(id, head_bytes, rest)
  local job_key, pieces = key('job', id), key('body', id)
  local body, large = unpack(redis.call('HMGET', job_key, 'body', 'body_bytes'))
  if not body and not large then return nil end
  local before, parts = tonumber(large) or #body, {}
  for n = 1, large and math.ceil(head_bytes / PIECE_BYTES) or 0 do parts[n] = redis.call('HGET', pieces, n - 1) or '' end
  body = string.sub(body or table.concat(parts), 1, head_bytes) .. rest
  redis.call('UNLINK', pieces)
  if #body <= PIECE_BYTES then
    redis.call('HSET', job_key, 'body', body)
    redis.call('HDEL', job_key, 'body_bytes')
  else
    for n = 0, math.ceil(#body / PIECE_BYTES) - 1 do
      redis.call('HSET', pieces, n, string.sub(body, n * PIECE_BYTES + 1, (n + 1) * PIECE_BYTES))
    end
    redis.call('HSET', job_key, 'body_bytes', int(#body))
    redis.call('HDEL', job_key, 'body')
    local left_ms = redis.call('PTTL', job_key)
    if left_ms > 0 then redis.call('PEXPIRE', pieces, left_ms) end
  end
  return #body - before
end
