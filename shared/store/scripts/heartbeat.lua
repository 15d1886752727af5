-- Each 0.5 s, from a thread of the worker: the lease of all its jobs. ARGV: worker
note_alive()
beat(ARGV[1])
return redis.status_reply('OK')
