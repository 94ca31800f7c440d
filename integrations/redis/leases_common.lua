-- Prepended to the other lease scripts. KEYS: leases, expiry, totals.
-- A lease is one field of `leases`: router SEP lease id -> [[worker, prefill, decodes, context], ...].
-- `totals` changes only together with a lease, by that lease's own numbers, so it is always their sum.
local leases, expiry, totals = KEYS[1], KEYS[2], KEYS[3]
local SEP = '\31'
local KINDS = {'p', 'd', 'c'}

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function add(field, entries, sign)
  local router = string.sub(field, 1, string.find(field, SEP, 1, true) - 1)
  for _, entry in ipairs(entries) do
    for i, kind in ipairs(KINDS) do
      local n = entry[i + 1]
      if n ~= 0 then
        local total = router .. SEP .. entry[1] .. SEP .. kind
        -- nothing left is no field; below nothing can only be when somebody deleted `totals`
        if redis.call('HINCRBY', totals, total, string.format('%.0f', sign * n)) <= 0 then
          redis.call('HDEL', totals, total)
        end
      end
    end
  end
end

local function drop(field)
  local held = redis.call('HGET', leases, field)
  redis.call('ZREM', expiry, field)
  if not held then
    return 0
  end
  redis.call('HDEL', leases, field)
  add(field, cjson.decode(held), -1)
  return 1
end

local function sweep()
  local now, swept = now_ms(), 0
  while true do
    local expired = redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, 200)
    if #expired == 0 then
      return swept
    end
    for _, field in ipairs(expired) do
      swept = swept + drop(field)
    end
  end
end
