-- What all scripts together need: to write, and to ask whether a channel has subscribers. ARGV: who asks
is_heard(ARGV[1])
return redis.call('SET', base .. 'probe', ARGV[1], 'PX', 10000)
