-- The fast way: one exclusive name that is still ours, nobody waits or watches.
if KEYS[2] and not ARGV[4] then
  local found = redis.call('MGET', KEYS[1], KEYS[2])
  if found[2] == KEYS[1] and found[1] and string.sub(found[1], 1, 34) == ARGV[1]
    and redis.call('EXISTS', '@P@q:' .. KEYS[2], '@P@w') == 0 then
    redis.call('DEL', KEYS[2], KEYS[1])
    redis.call('HSET', '@P@z', ARGV[2], ARGV[3])
    return 1
  end
end
