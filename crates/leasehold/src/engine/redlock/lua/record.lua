-- The record of a live lease, for a node that lost it. KEYS: the record. ARGV: secret. Returns {static part, age in ms}, -1
-- stale, -2 not held.
local record = read_record(string.sub(KEYS[1], -32))
if not record or record.state == 'X' or record.state == 'W' or record.secret ~= ARGV[1] then
  return -2
end
if record.state ~= 'L' or not end_of(record) then
  return -1
end
return { record.static, math.max(now - record.granted, 0) }
