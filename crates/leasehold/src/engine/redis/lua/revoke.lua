-- KEYS: the key. ARGV: reason. Returns how many, -1 a stranger has it.
local freed = reap()
local seen = look(KEYS[1])
if seen.foreign then
  serve(freed)
  tell()
  return -1
end
-- The holders are taken before anybody is served: a successor is never hit.
local records, count = {}, 0
push_all(freed, { KEYS[1] })
if seen.use == 'x' then
  if seen.record then
    records[1] = seen.record
  else
    call('DEL', KEYS[1])
    mark_changed(KEYS[1])
  end
elseif seen.use ~= '-' then
  for _, member in ipairs(call('ZRANGEBYSCORE', P .. 'h:' .. KEYS[1], '(' .. int(now), '+inf')) do
    local record = read_record((parse_member(member)))
    if record and record.state == 'L' then
      records[#records + 1] = record
    else
      call('ZREM', P .. 'h:' .. KEYS[1], member)
    end
  end
  if #records == 0 then
    call('DEL', KEYS[1], P .. 'h:' .. KEYS[1])
  end
  mark_changed(KEYS[1])
end
for _, record in ipairs(records) do
  push_all(freed, record.keys)
  if end_of(record) then
    finish(record, 'V', ARGV[1], true)
    count = count + 1
  else
    vacate(record) -- an operator does not wait out a closing delay
  end
end
serve(freed)
tell()
return count
