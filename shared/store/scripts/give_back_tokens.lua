-- Give back the tokens of a request whose job was not queued.
-- ARGV: tokens, name, ...
-- Reply: nothing
for i = 2, #ARGV do settle_tokens(ARGV[i], tonumber(ARGV[1])) end
