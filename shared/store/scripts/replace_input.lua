-- Take the input of a completed response out of its record, as a later response has it, too; or put it back.
-- ARGV: id, head_bytes, upto, new_upto, input, most_ttl_ms
--       head_bytes: of the body, before the input; upto, new_upto: where the input is, '' if in the body; input: JSON, '[]' to
--       take it out; most_ttl_ms: the later response is kept for so long, '' if the input is put back
-- Reply: 1 if it was replaced, 0 if the record is gone, small, in another state, or kept for longer
-- Invariant: a response that has not been completed keeps its input, which all attempts get.
local SMALL_BYTES = 4096 -- to take out a smaller one is not worth it
local id, head_bytes, most_ttl_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[6])
local job = load_job(id)
if not job or job.state ~= 'completed' or (redis.call('HGET', key('job', id), 'upto') or '') ~= ARGV[3] then return 0 end
local bytes = tonumber(job.body_bytes) or redis.call('HSTRLEN', key('job', id), 'body')
if most_ttl_ms and (bytes <= SMALL_BYTES or redis.call('PTTL', key('job', id)) > most_ttl_ms) then return 0 end
local more = replace_rest(id, head_bytes, ', "input": ' .. ARGV[5] .. '}')
if not more then return 0 end
redis.call('HSET', key('job', id), 'upto', ARGV[4])
recount_job(id, job.tenant, more)
return 1
