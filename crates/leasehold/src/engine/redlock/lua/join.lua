-- Another call of the same request takes part in its lease: whoever took it cannot abandon it any more. KEYS: the record.
-- ARGV: secret. Returns {left, cap left or -1}, -1 stale, -2 not held.
local record = read_record(string.sub(KEYS[1], -32))
if not record or record.state == 'X' or record.state == 'W' or record.secret ~= ARGV[1] then
  return -2
end
local ends = record.state == 'L' and end_of(record)
if not ends then
  return -1
end
call('SET', P .. 'j:' .. ARGV[1], '1', 'PX', int(math.max(ends - now, 1) + KEEP_MS))
return { math.max(ends - up, 0), cap_left(record) }
