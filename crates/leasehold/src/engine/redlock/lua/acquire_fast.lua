-- The fast way: one free name, nobody waits or watches, and there was no earlier try under this handle or secret.
if not KEYS[3] and redis.call('EXISTS', KEYS[1], KEYS[2], '@P@q:' .. KEYS[2], '@P@w',
  '@P@b:' .. string.sub(ARGV[4], 2, 33)) == 0 then
  local clock = redis.call('TIME')
  local token = redis.call('INCR', '@P@t')
  if token < 1e15 then -- the counter was lost: the clock goes on where it was
    token = math.max(token, tonumber(clock[1]) * 1000000 + tonumber(clock[2]))
    redis.call('SET', '@P@t', string.format('%d', token))
  end
  local text = token <= 9007199254740991 and string.format('%d', token) or redis.call('GET', '@P@t')
  redis.call('SET', KEYS[2], KEYS[1], 'PX', tonumber(clock[2]) % 1000 == 0 and ARGV[1] or ARGV[2])
  redis.call('SET', KEYS[1], 'L' .. ARGV[4] .. text .. ' ' .. clock[1] .. ' ' .. clock[2], 'PX', ARGV[3])
  return 1
end
