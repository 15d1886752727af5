-- What all scripts together need: to write, and to ask whether a channel has subscribers.
-- KEYS: base
-- ARGV: who asks
-- Reply: OK
redis.call('PUBSUB', NUMSUB, CHANNEL.control .. ARGV[1])
return redis.call('SET', KEYS[1] .. WORD.probe, ARGV[1], 'PX', 10000)
