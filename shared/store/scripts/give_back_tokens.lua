-- Give back the tokens of a request whose job was not queued.
-- ARGV: tokens, day on which they were reserved, name, ...
-- Reply: nothing
local tokens = tonumber(ARGV[1])
for i = 3, #ARGV do settle_tokens(ARGV[i], tokens, tokens, ARGV[2]) end
