-- One node's vote. KEYS: the record, the key of each name. ARGV as the Redis engine's acquire has them; nobody waits here.
-- Returns 1 granted, 'X' the try was abandoned, 'S' another call of the same request is here, 'M' the request id has another
-- body, or {'H', key, label or nothing, left or -1, waiters, 'l' lease or 'f' foreign or 'o', handle}.
local handle = string.sub(KEYS[1], -32)
local claim = parse_record(handle, 'L' .. ARGV[4] .. '0 0 0')
if call('EXISTS', P .. 'b:' .. claim.secret) == 1 then
  return 'X'
end
serve(reap())
local earlier = read_record(handle)
if earlier then
  tell()
  if earlier.state == 'X' then
    return 'X'
  elseif earlier.fingerprint ~= claim.fingerprint then
    return 'M'
  elseif earlier.secret == claim.secret and earlier.state == 'L' and end_of(earlier) then
    return 1
  end
  return 'S'
end
for _, key in ipairs(claim.keys) do
  if call('EXISTS', P .. 'q:' .. key) == 1 then
    serve({ key }) -- those who wait at this server come before us
  end
end
local blocked
for at, key in ipairs(claim.keys) do
  local seen = look(key)
  if not admits(seen, claim.modes[at]) or queue_blocks(key, claim.modes[at], seen, nil) then
    blocked = key
    break
  end
end
if not blocked then
  grant(claim)
  tell()
  return 1
end
local reply, seen = held_reply(blocked), look(blocked)
reply[6] = seen.foreign and 'f' or (seen.record and 'l') or 'o'
reply[7] = seen.record and seen.record.handle or ''
tell()
return reply
