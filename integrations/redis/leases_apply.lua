-- ARGV[1]: JSON list of [op, field, ttl_ms, entries]; answers one number per op: 1 changed, 0 not.
local answers = {}
sweep()
for i, op in ipairs(cjson.decode(ARGV[1])) do
  local name, field, ttl_ms, entries = op[1], op[2], op[3], op[4]
  local changed = 0
  if name == 'set' then
    drop(field)
    redis.call('HSET', leases, field, cjson.encode(entries))
    redis.call('ZADD', expiry, now_ms() + ttl_ms, field)
    add(field, entries, 1)
    changed = 1
  elseif name == 'prefill_done' then
    local held = redis.call('HGET', leases, field)
    if held then
      entries = cjson.decode(held)
      add(field, entries, -1)
      for _, entry in ipairs(entries) do
        changed = (entry[2] ~= 0) and 1 or changed
        entry[2] = 0
      end
      add(field, entries, 1)
      redis.call('HSET', leases, field, cjson.encode(entries))
    end
  elseif name == 'renew' then
    if redis.call('HEXISTS', leases, field) == 1 then
      redis.call('ZADD', expiry, now_ms() + ttl_ms, field)
      changed = 1
    end
  elseif name == 'release' then
    changed = drop(field)
  elseif name == 'reset' then
    -- field: router SEP; all of that router's leases go
    for _, held in ipairs(redis.call('HKEYS', leases)) do
      if string.sub(held, 1, #field) == field then
        changed = changed + drop(held)
      end
    end
  end
  answers[i] = changed
end
return answers
