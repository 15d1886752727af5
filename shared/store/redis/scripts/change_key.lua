-- Store, replace or delete an API key, and tell all gateways.
-- KEYS: base
-- ARGV: version, channel, most keys, digest before ('': none, it is new), digest from now on ('': none, it is revoked), record
-- Reply: 1; 0 if there is no such key (any more); -1 if there are as many as there may be
local all, before, after = base .. WORD.api_keys, ARGV[4], ARGV[5]
if after ~= '' and call('HEXISTS', all, after) == 1 then return 1 end -- a repeated call
if before == '' then
  if call('HLEN', all) >= tonumber(ARGV[3]) then return -1 end
elseif call('HDEL', all, before) == 0 then
  return 0
end
if after ~= '' then redis.call('HSET', all, after, ARGV[6]) end
redis.call('SET', base .. WORD.api_keys_version, ARGV[1])
redis.call(PUBLISH, ARGV[2], '')
return 1
