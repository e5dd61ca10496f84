-- Once per connection, before anything else. ARGV: master_replid. Tries every command that a script will ever use on a key of
-- its own, so that a missing permission shows here and not in the middle of a release.
local probe = P .. 'probe'
call('DEL', probe)
call('SET', probe, '1', 'PX', '1000')
call('GET', probe)
call('MGET', probe)
call('EXISTS', probe)
call('INCR', probe)
call('PTTL', probe)
call('PEXPIRE', probe, '1000')
call('PEXPIREAT', probe, int(now + 1000))
call('PEXPIRETIME', probe)
call('DEL', probe)
call('ZADD', probe, '1', 'a')
call('ZCARD', probe)
call('ZSCORE', probe, 'a')
call('ZRANGE', probe, '0', '0')
call('ZRANGEBYSCORE', probe, '-inf', '0')
call('ZREMRANGEBYSCORE', probe, '-inf', '0')
call('ZREM', probe, 'a')
call('HSET', probe, 'a', '1')
call('HGET', probe, 'a')
call('DEL', probe)
call('XADD', probe, '0-1', 'a', '1')
call('XRANGE', probe, '-', '+')
call('XREVRANGE', probe, '+', '-')
call('DEL', probe)
call('LPUSH', probe, '1')
call('DEL', probe)
call('PUBLISH', P .. 'c:probe', '')
if call('GET', P .. 'e') ~= ARGV[1] then
  -- Another history than the one the counter was raised for: a restart, a failover, a restored copy.
  local token = call('GET', P .. 't') or '0'
  if #token < 16 or tonumber(token) < seconds * 1000000 + micros then
    call('SET', P .. 't', int(seconds * 1000000 + micros))
  else
    call('INCR', P .. 't')
  end
  call('SET', P .. 'e', ARGV[1])
  call('DEL', P .. 'w', P .. 'ev', P .. 'd', P .. 'i')
end
return { clock[1], clock[2], call('GET', P .. 't') }
