-- Store, change or delete an API key or the limits of a tenant, and tell all gateways.
-- KEYS: base
-- ARGV: version, channel, most keys, field before ('': none, it is new or it stays), field from now on ('': none, it is
--       revoked), record; a field is a key's digest or a tenant's name (key_records.py)
-- Reply: 1; 0 if there is no such key (any more); -1 if there are as many as there may be
local all, before, after = base .. WORD.api_keys, ARGV[4], ARGV[5]
local there = after ~= '' and redis.call('HGET', all, after)
if there and there == ARGV[6] then return 1 end -- a repeated call
if before == '' then
  if not there and redis.call('HLEN', all) >= tonumber(ARGV[3]) then return -1 end
elseif redis.call('HDEL', all, before) == 0 then
  return 0
end
if after ~= '' then redis.call('HSET', all, after, ARGV[6]) end
redis.call('SET', base .. WORD.api_keys_version, ARGV[1])
redis.call(PUBLISH, ARGV[2], '')
return 1
