-- The state of one call.
local function begin(keys)
  base = keys[1]
  read_us, lease_ids, drafts, draft_names, requests, step_logs = nil, 0, {}, {}, {}, {}
  growth, joined, share_rules = nil, {}, {half_life_us = 0, lift = 0}
end
