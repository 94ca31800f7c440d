-- Change roles if nobody has since they were read, and say so in the audit, at once.
-- KEYS: roles, versions, audit. ARGV[1]: JSON {epoch, structured, needs: [version], roles: {field: text},
-- audit: {field: text}}. Answers {1, epoch, ms}; {0, the roles as they are now: field, value, ...}: somebody
-- else was faster; {-1, version}: the store does not have that version.
local change = cjson.decode(ARGV[1])
local epoch = tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0')
if epoch ~= change.epoch then
  return {0, redis.call('HGETALL', KEYS[1])}
end
for _, version in ipairs(change.needs) do
  if redis.call('HEXISTS', KEYS[2], version) == 0 then
    return {-1, version}
  end
end
local now = redis.call('TIME')
local ms = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
local fields = {'epoch', tostring(epoch + 1), 'time_s', string.format('%.3f', ms / 1000)}
for name, value in pairs(change.roles) do
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end
redis.call('HSET', KEYS[1], unpack(fields))
local entry = {'epoch', tostring(epoch + 1)}
for name, value in pairs(change.audit) do
  entry[#entry + 1] = name
  entry[#entry + 1] = value
end
redis.call('XADD', KEYS[3], '*', unpack(entry))
return {1, epoch + 1, string.format('%.3f', ms / 1000)}
