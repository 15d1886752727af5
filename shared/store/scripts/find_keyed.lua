-- The job that an earlier call with an idempotency key has made, for a call that has to read much before it can submit.
-- ARGV: idempotency_name, body_hash
-- Reply: {'joined' | 'reused' (the key belongs to the same or to another body), id of the key's job}; nil if the key is free
-- Invariant: nothing is changed; `submit` looks again.
local status, id = key_user('', key('idempotency', ARGV[1]), ARGV[2], {})
return status and {status, id}
