-- Who has a key. KEYS: the key. Returns nothing, or {'l' lease or 'f' foreign or 'o', handle, 1 live or 0, label, since, left}.
-- Changes nothing.
local seen = look(KEYS[1])
if seen.use == '-' then
  return false
elseif seen.foreign then
  return { 'f', '', 1, '', 0, math.max(call('PTTL', KEYS[1]), 0) }
elseif seen.use == 'x' and seen.record then
  local record = seen.record
  return { 'l', record.handle, seen.live and 1 or 0, record.holder, math.max(now - record.granted, 0),
    math.max(seen.ends - up, 0) }
end
return { 'o', '', 0, '', 0, 0 }
