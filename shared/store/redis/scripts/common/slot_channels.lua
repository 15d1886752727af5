-- On a cluster only: the channels lie in the slot of the shard.
local begin_call = begin
local function begin(keys)
  begin_call(keys)
  CHANNEL.tokens, CHANNEL.control = base .. 'tokens:', base .. 'control:'
end
