-- KEYS: the record. ARGV: secret, holder, process and number of the change (or none). Returns 1, -1 stale, -2 not held.
local record = read_record(string.sub(KEYS[1], -32))
if not record then
  return ring_has(string.sub(KEYS[1], -32), ARGV[1]) and -1 or -2
elseif record.state == 'X' or record.state == 'W' or record.secret ~= ARGV[1] then
  return -2
end
serve(reap())
if record.state ~= 'L' or not end_of(record) then
  tell()
  return -1
end
if is_late(record, ARGV[3], ARGV[4]) then
  tell()
  return 1
end
local start = string.match(record.static, '^([^\n]*\n)')
local tail = changed_tail(record, ARGV[3], ARGV[4])
call('SET', KEYS[1], 'L' .. start .. ARGV[2] .. '\n' .. record.wants .. tail, 'KEEPTTL')
record.holder = ARGV[2]
add_event('b', record, '')
tell()
return 1
