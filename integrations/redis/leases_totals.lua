-- Drops what has expired, then answers the totals of all routers.
sweep()
return redis.call('HGETALL', totals)
