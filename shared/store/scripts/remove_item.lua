-- Delete one item of a conversation.
-- ARGV: conversation, item, ttl_ms
-- Reply: {status, value}: 'ok'; 'gone': no such conversation or item; 'busy', id of the response's job that has to end first
local conversation, order, stored = unpack(conversation_keys(ARGV[1]))
local found = redis.call('HMGET', conversation, 'tenant', 'bytes', 'job', 'kept')
if found[3] then return {'busy', found[3]} end
local json = redis.call('HGET', stored, ARGV[2])
if not found[1] or not json then return {'gone', ''} end
local bytes = math.max(0, (tonumber(found[2]) or 0) - #json - #ARGV[2])
local before = tonumber(found[4]) or 0
local kept = math.max(0, before - item_cost(ARGV[2], json))
redis.call('HDEL', stored, ARGV[2])
leave_place(ARGV[1] .. ':' .. ARGV[2], redis.call('ZSCORE', order, ARGV[2]), found[1])
redis.call('ZREM', order, ARGV[2])
redis.call('HSET', conversation, 'bytes', int(bytes), 'kept', int(kept))
change_conversation(ARGV[1], ARGV[3])
count_anew('conversation:' .. ARGV[1], found[1], before, kept, int(now_us() + ARGV[3] * 1000))
return {'ok', ''}
