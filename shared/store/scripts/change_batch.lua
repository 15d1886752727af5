-- Change a batch, as its owner: what it has read, submitted and written, or its status.
-- ARGV: id, epoch, step, status or '', set, add, lines, ended lines, output segments, error segments, kept_ms, ended jobs
--       step: one more with each change; set: flat field, value, ...; add: flat field, number, ...; lines: flat number,
--       where it is, ... of lines in flight from now on; ended lines: their numbers; segments: '<bytes> <blob>', to be
--       added; all msgpack; kept_ms: lifetime of a batch that has ended; ended jobs: ids, which the owner deletes
--       after this change and the next owner deletes again
-- Reply: its status; nil if another one owns it
-- Invariant: a change is made once, however often it is sent. The lines below `next_line` that are not in flight are
--       in a segment, each once.
local id, status = ARGV[1], ARGV[4]
local batch, lines = key('batch', id), key('batch_lines', id)
local found = redis.call('HMGET', batch, 'epoch', 'step', 'status', 'tenant', 'input_file_id', 'notify', 'kept')
if found[1] ~= ARGV[2] then return nil end
if found[2] == ARGV[3] then return found[3] end
if tonumber(found[2] or 0) + 1 ~= tonumber(ARGV[3]) then return nil end

local function all(n, use)
  local words = cmsgpack.unpack(ARGV[n])
  for i = 1, #words, 1000 do use(unpack(words, i, math.min(i + 999, #words))) end
end
redis.call('HSET', batch, 'step', ARGV[3], 'changed_us', int(now_us()))
all(5, function(...) redis.call('HSET', batch, ...) end)
local added = cmsgpack.unpack(ARGV[6])
for i = 1, #added, 2 do redis.call('HINCRBY', batch, added[i], added[i + 1]) end
all(7, function(...) redis.call('HSET', lines, ...) end)
all(8, function(...) redis.call('HDEL', lines, ...) end)
all(9, function(...) redis.call('RPUSH', key('batch_output', id), ...) end)
all(10, function(...) redis.call('RPUSH', key('batch_errors', id), ...) end)
if ARGV[12] ~= '' then redis.call('HSET', lines, 'ended_jobs', ARGV[12]) end
local bytes = count_batch(id, found[4], tonumber(found[7]) or 0)
if status == '' or found[3] == 'cancelling' and (status == 'in_progress' or status == 'finalizing') then return found[3] end
redis.call('HSET', batch, 'status', status, 'at:' .. status, int(now_us()))
if ARGV[11] ~= '' then
  redis.call('DEL', lines, key('batch_lock', id))
  bytes = count_batch(id, found[4], bytes)
  for _, word in ipairs({'batch', 'batch_output', 'batch_errors'}) do redis.call('PEXPIRE', key(word, id), ARGV[11]) end
  count_anew('batch:' .. id, found[4], bytes, bytes, int(now_us() + ARGV[11] * 1000))
  redis.call('SREM', key('open_batches', found[4]), id)
  redis.call('SREM', key('document_users', found[5]), id)
  redis.call('ZREM', base .. 'open_batches', id)
  note_end(id, status, {tenant = found[4], notify = found[6], worker = '', history = ''})
end
return status
