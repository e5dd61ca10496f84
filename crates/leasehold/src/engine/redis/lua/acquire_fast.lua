-- The fast way: one exclusive name that is free, nobody waits or watches, and there was no earlier try.
if not KEYS[3] and redis.call('EXISTS', KEYS[1], KEYS[2], '@P@q:' .. KEYS[2], '@P@w') == 0 then
  local last, clock = redis.call('GET', '@P@t'), redis.call('TIME')
  local token = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
  local text
  if last and tonumber(last) >= token then
    token = redis.call('INCR', '@P@t')
    text = token <= 9007199254740991 and string.format('%d', token) or redis.call('GET', '@P@t')
  else -- never behind the clock: the counter may be an older one than it was
    text = string.format('%d', token)
    redis.call('SET', '@P@t', text)
  end
  redis.call('SET', KEYS[2], KEYS[1], 'PX', tonumber(clock[2]) % 1000 == 0 and ARGV[1] or ARGV[2])
  redis.call('SET', KEYS[1], 'L' .. ARGV[4] .. text .. ' ' .. clock[1] .. ' ' .. clock[2], 'PX', ARGV[3])
  return text
end
