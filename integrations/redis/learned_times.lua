-- The server's time, and the fields of KEYS[1] if there are no more than ARGV[1].
local now = redis.call('TIME')
local fields = redis.call('HLEN', KEYS[1])
if fields > tonumber(ARGV[1]) then
  return {now[1], now[2], fields, {}}
end
return {now[1], now[2], fields, redis.call('HGETALL', KEYS[1])}
