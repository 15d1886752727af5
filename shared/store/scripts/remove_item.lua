-- Delete one item of a conversation.
-- ARGV: conversation, item, ttl_ms
-- Reply: {status, value}: 'ok'; 'gone': no such conversation or item; 'busy', id of the response's job that has to end first
local MOST_ID = 128 -- of an id in the query of a list
local conversation, order, stored = unpack(conversation_keys(ARGV[1]))
local found = redis.call('HMGET', conversation, 'tenant', 'bytes', 'job')
if found[3] then return {'busy', found[3]} end
local json = redis.call('HGET', stored, ARGV[2])
if not found[1] or not json then return {'gone', ''} end
local bytes = math.max(0, (tonumber(found[2]) or 0) - #json - #ARGV[2])
redis.call('HDEL', stored, ARGV[2])
if #ARGV[2] <= MOST_ID then leave_place(ARGV[1] .. ' ' .. ARGV[2], redis.call('ZSCORE', order, ARGV[2])) end
redis.call('ZREM', order, ARGV[2])
redis.call('HSET', conversation, 'bytes', int(bytes))
change_conversation(ARGV[1], ARGV[3])
count_kept(found[1], ARGV[1], bytes)
return {'ok', ''}
