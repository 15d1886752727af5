-- Deferred writes: one command for all members of a key, at the end of the script. The writes of a step
-- or a batch of jobs cost a fraction of what they would one by one. A script does not read what it deferred.
local drafts, draft_names

local function defer(command, name, word, second) -- one word of a member, or two
  local id = command .. name
  local draft = drafts[id]
  if not draft then
    draft = {command, name}
    if command == 'XACK' then draft[3] = GROUP end
    drafts[id] = draft
    draft_names[#draft_names + 1] = id
  end
  local n = #draft + 1
  draft[n], draft[n + 1] = word, second
  if n > 4000 then call(unpack(draft)); drafts[id] = nil end
end

local function flush_writes()
  for _, id in ipairs(draft_names) do
    if drafts[id] then call(unpack(drafts[id])) end
  end
  drafts, draft_names = {}, {}
end
