-- Id of the last entry of each job's log: what a reader that gets no frames may have missed. ARGV: id...
-- Reply: '0-0': there is no log yet; '': the log is lost; nil: there is no such job
local reply = {}
for i, id in ipairs(ARGV) do
  local last = redis.call('XREVRANGE', key('log', id), '+', '-', 'COUNT', 1)[1]
  local state, lease = unpack(redis.call('HMGET', key('job', id), 'state', 'lease'))
  reply[i] = state and (last and last[1] or lease and '' or '0-0')
end
return reply
