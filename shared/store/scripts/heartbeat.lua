-- Each 0.5 s, from a thread of the worker: the lease of all its jobs. ARGV: worker, length in microseconds
note_alive()
redis.call('HSET', base .. 'leases', ARGV[1], ARGV[2])
beat(ARGV[1])
return redis.status_reply('OK')
