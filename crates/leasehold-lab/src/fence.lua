#!lua
-- KEYS: n fences, then the caller's keys.  ARGV: n, token, mark, command, then its arguments after the key
local n, token, mark = tonumber(ARGV[1]), ARGV[2], ARGV[3]
if not string.find(token, '^[1-9]%d*$') or #token > 19 then return redis.error_reply('INVALID token') end
for i = 1, n do
  local kept = redis.call('GET', KEYS[i])
  if kept then
    local t, m = string.match(kept, '^(%d+):?(%x*)$')
    if not t then return redis.error_reply('CORRUPT ' .. KEYS[i]) end
    if #t > #token or #t == #token and t > token then          -- as text: numbers here are doubles, wrong from 2^53 on
      return redis.error_reply('STALE presented=' .. token .. ' highest=' .. t)
    end
    if t == token and m ~= mark and m ~= '' then return redis.error_reply('OTHERLEASE presented=' .. token .. ' highest=' .. t) end
  end
end
local shown = mark == '' and token or token .. ':' .. mark
for i = 1, n do redis.call('SET', KEYS[i], shown) end           -- first the memory, without expiry; then the write
return redis.call(ARGV[4], KEYS[n + 1], unpack(ARGV, 5))
