-- Gives this node a lease that it lost. KEYS: the record. ARGV: static part, age in ms, life in ms, process and number of the
-- renewal. Returns 1, or 0: it is known here, was abandoned or released, or a name is in use.
local handle = string.sub(KEYS[1], -32)
local record = parse_record(handle, 'L' .. ARGV[1] .. '0 0 0')
if call('EXISTS', KEYS[1], P .. 'b:' .. record.secret) > 0 or ring_has(handle, record.secret) then
  return 0
end
serve(reap())
for at, key in ipairs(record.keys) do
  local seen = look(key)
  if not admits(seen, record.modes[at]) or queue_blocks(key, record.modes[at], seen, nil) then
    tell()
    return 0
  end
end
-- Granted as long ago as elsewhere: the cap counts from there.
local granted = up - tonumber(ARGV[2])
local ends = up + tonumber(ARGV[3])
if record.cap > 0 then
  ends = math.min(ends, granted + record.cap)
end
if ends <= now then
  tell()
  return 0
end
record.token, record.granted = next_token(), granted
record.tail = record.token .. ' ' .. int(math.floor(granted / 1000)) .. ' ' .. int(granted % 1000 * 1000) .. ' ' .. ARGV[4]
  .. ' ' .. ARGV[5]
for at in ipairs(record.keys) do
  hold(record, at, ends)
end
call('SET', KEYS[1], 'L' .. record.static .. record.tail, 'PXAT', int(ends + record.delay + KEEP_MS))
if watch then
  add_event('g', record, '')
  call('ZADD', P .. 'd', int(ends), handle)
  index_names(record)
end
tell()
return 1
