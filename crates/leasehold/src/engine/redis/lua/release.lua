-- KEYS: the record, the key of its name (or none). ARGV: 'L1' and the secret, slot and value of the ring, ban in ms (or
-- none). Returns 1, 0 released before, -1 stale, -2 not held.
local handle, secret = string.sub(KEYS[1], -32), string.sub(ARGV[1], 3)
local record = read_record(handle)
if not record then
  if ring_has(handle, secret) then
    return 0
  end
  if ARGV[4] then
    call('SET', KEYS[1], 'X', 'PX', ARGV[4])
  end
  return -2
elseif record.state == 'X' or record.state == 'W' or record.secret ~= secret then
  return -2
elseif record.state == 'R' then
  return 0
end
serve(reap())
local reply = -1
if record.state == 'L' then
  if end_of(record) then
    finish(record, 'R', '', ARGV[4] ~= nil)
    reply = 1
  else
    -- One of its names may have been taken away: the others are not kept closed. A closing delay is.
    local whole = true
    for _, key in ipairs(record.keys) do
      local seen = look(key)
      whole = whole and not (seen.record and seen.record.handle == handle and seen.live)
    end
    if not whole then
      vacate(record)
    end
  end
  serve(record.keys)
end
tell()
return reply
