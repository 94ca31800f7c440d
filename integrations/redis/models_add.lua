-- Keep a version; its weights anew, should they have been damaged.
-- KEYS: roles, versions, audit, weights. ARGV: version, manifest, weights, who.
-- Answers 1: it is new, or was not as it is now; 0: it was there already.
local before = redis.call('HGET', KEYS[2], ARGV[1])
if before == ARGV[2] and redis.call('GET', KEYS[4]) == ARGV[3] then
  return 0
end
redis.call('SET', KEYS[4], ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call(
  'XADD', KEYS[3], '*', 'who', ARGV[4], 'command', 'add', 'version', ARGV[1],
  'epoch', redis.call('HGET', KEYS[1], 'epoch') or '0',
  'reason', before and 'it was there, and not as it was made' or ''
)
return 1
