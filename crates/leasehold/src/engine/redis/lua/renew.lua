-- KEYS: the record. ARGV: secret, ttl or '', process and number of the change (or none). Returns {remaining, cap left or
-- -1}, -1 stale, -2 not held.
local record = read_record(string.sub(KEYS[1], -32))
if not record then
  return ring_has(string.sub(KEYS[1], -32), ARGV[1]) and -1 or -2
elseif record.state == 'X' or record.state == 'W' or record.secret ~= ARGV[1] then
  return -2
end
serve(reap())
local before = record.state == 'L' and end_of(record)
if not before then
  tell()
  return -1
end
if is_late(record, ARGV[3], ARGV[4]) then
  tell()
  return { math.max(before - up, 0), cap_left(record) }
end
local ttl = ARGV[2] ~= '' and tonumber(ARGV[2]) or record.ttl
local ends = up + ttl
if record.cap > 0 then
  ends = math.min(ends, record.granted + record.cap)
end
for at, key in ipairs(record.keys) do
  if record.modes[at].letter == 'x' then
    call('PEXPIREAT', key, int(math.max(ends + record.delay - 1, now + 1)))
  else
    local seen = prune(key)
    call('ZADD', P .. 'h:' .. key, 'XX', int(ends + record.delay), member_of(record, at))
    write_crowd(key, seen.use, seen.capacity, seen.used)
  end
  if ends < before then
    mark_changed(key) -- the head of the queue looks earlier
  end
end
if ttl == record.ttl and not ARGV[3] then
  call('PEXPIREAT', KEYS[1], int(ends + record.delay + KEEP_MS))
else
  local start, rest = string.match(record.static, '^(%S+) %d+( .*)$')
  local static = start .. ' ' .. int(ttl) .. rest
  local tail = changed_tail(record, ARGV[3], ARGV[4])
  call('SET', KEYS[1], 'L' .. static .. tail, 'PXAT', int(ends + record.delay + KEEP_MS))
end
if watch then
  call('ZADD', P .. 'd', int(ends), record.handle)
end
tell()
return { math.max(ends - up, 0), cap_left(record) }
