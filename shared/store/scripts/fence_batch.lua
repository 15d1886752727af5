-- From now on refuse jobs of a batch that an earlier owner submits.
-- ARGV: id, epoch, kept_ms
-- Reply: 1
local fence, epoch = key('batch_epoch', ARGV[1]), tonumber(ARGV[2])
if epoch >= tonumber(redis.call('GET', fence) or 0) then redis.call('SET', fence, epoch, 'PX', ARGV[3]) end
return 1
