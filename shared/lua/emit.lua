-- One engine step's output of one worker, for all its jobs of this shard.
-- KEYS: base.  ARGV: msgpack of a flat array id, nonce, seq, chunk, journal, quiet, frame, id, ...
--       chunk: bytes for the client, '' if none; journal: packed deltas, '' if none;
--       quiet: 1 if the frame is for those only who watch the job's events.
-- Returns a flat array id, state, ... of the jobs whose lease this worker has lost.
-- Invariant: an entry of the log is written by the lease's holder only, and once: its id is its number,
--       so a repeated call changes nothing. PUBLISH follows the log in the same step, once per gateway.
local items = cmsgpack.unpack(ARGV[1])
local lost, frames = {}, {}
for i = 1, #items, 7 do
  local id, chunk, journal = items[i], items[i + 3], items[i + 4]
  local lease = held(id, items[i + 1])
  if not lease then
    lost[#lost + 1] = id
    lost[#lost + 1] = redis.call('HGET', key('job', id), 'state') or 'gone'
  else
    local entry = {key('log', id), int(items[i + 2]) .. '-0'}
    if chunk ~= '' then entry[#entry + 1] = 'c'; entry[#entry + 1] = chunk end
    if journal ~= '' then entry[#entry + 1] = 'j'; entry[#entry + 1] = journal end
    local reply = redis.pcall('XADD', unpack(entry))
    local repeated = type(reply) == 'table' and string.find(reply.err, 'equal or smaller', 1, true)
    if type(reply) == 'table' and not repeated then return reply end
    local watched, watchers = string.sub(lease, NONCE + 1, NONCE + 1), string.sub(lease, NONCE + 2)
    if not repeated and watchers ~= '' and (items[i + 5] == 0 or watched == '1') then
      local list = frames[watchers]
      if not list then list = {}; frames[watchers] = list end
      list[#list + 1] = items[i + 6]
    end
  end
end
-- Jobs with the same listeners were put together; a gateway that is in several such sets gets one message.
local messages = {}
for watchers, list in pairs(frames) do
  local part = table.concat(list)
  for gateway in string.gmatch(watchers, '%S+') do messages[gateway] = (messages[gateway] or '') .. part end
end
for gateway, message in pairs(messages) do publish(gateway, message) end
return lost
