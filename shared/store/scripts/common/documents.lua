-- Documents (documents.py): what is not a job.
local COUNTED = {file = true, webhook = true} -- kinds of tenants' documents (kept.lua)
local LATER_US = 600000000 -- an expired document that is in use is looked at again after this time

-- The texts of all of a kind; the tenant's ids by place; the bytes of each tenant; ids by the time at which they expire.
local function document_keys(kind, tenant)
  return key('documents', kind), key('document_index', kind .. ':' .. tenant), key('document_bytes', kind),
    key('document_expiry', kind)
end

-- Tell who keeps a copy. The version is no number: after a failover that has lost changes, a number could be reached again
-- with other documents.
local function tell_change(text, channel)
  if channel == '' then return end
  redis.call('SET', key('document_version', channel), redis.sha1hex(text .. int(now_us())))
  redis.call(PUBLISH, channel, '')
end

local function document_cost(text) return text == '' and 0 or ITEM_BYTES + cost(#text) end

-- What a batch takes, whose record counts so much before.
local function count_batch(id, tenant, before)
  local bytes = RECORD_BYTES + redis.call('MEMORY', 'USAGE', key('batch', id), 'SAMPLES', 0)
  for _, word in ipairs({'batch_lines', 'batch_output', 'batch_errors'}) do
    bytes = bytes + (redis.call('MEMORY', 'USAGE', key(word, id)) or 0)
  end
  redis.call('HSET', key('batch', id), 'kept', int(bytes))
  keep(tenant, bytes - before)
  return bytes
end
