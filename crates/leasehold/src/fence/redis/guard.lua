-- KEYS: n fences, then the caller's keys.  ARGV: n, token, mark, then the caller's arguments.
-- The caller's part follows, and sees its own KEYS and ARGV alone.
local KEYS, ARGV = KEYS, ARGV
do
  local n, token, mark = tonumber(ARGV[1]), ARGV[2], ARGV[3]
  if not string.find(token, '^[1-9]%d*$') or #token > 19 or #token == 19 and token > '9223372036854775807' then
    return redis.error_reply('INVALID token')
  end
  local shown = mark == '' and token or token .. ':' .. mark
  local raised = {}
  for i = 1, n do
    local kept = redis.pcall('GET', KEYS[i])
    if type(kept) == 'table' then return redis.error_reply('CORRUPT ' .. KEYS[i]) end
    if kept then
      local t, m = string.match(kept, '^([1-9]%d*)$'), ''
      if not t then t, m = string.match(kept, '^([1-9]%d*):(%x+)$') end
      if not t then return redis.error_reply('CORRUPT ' .. KEYS[i]) end
      -- As text: numbers here are doubles, and wrong from 2^53 on.
      if #t > #token or #t == #token and t > token then
        return redis.error_reply('STALE presented=' .. token .. ' highest=' .. t .. ' fence=' .. i)
      end
      if t == token and m ~= mark and m ~= '' then
        return redis.error_reply('OTHERLEASE presented=' .. token .. ' highest=' .. t .. ' fence=' .. i)
      end
    end
    raised[i] = kept ~= shown
  end
  -- First the memory, without expiry, even if somebody gave it one; then the write. The other order could lose the memory.
  for i = 1, n do
    if raised[i] then redis.call('SET', KEYS[i], shown) else redis.call('PERSIST', KEYS[i]) end
  end
  local keys, args = {}, {}
  for i = n + 1, #KEYS do keys[i - n] = KEYS[i] end
  for i = 4, #ARGV do args[i - 3] = ARGV[i] end
  KEYS, ARGV = keys, args
end
