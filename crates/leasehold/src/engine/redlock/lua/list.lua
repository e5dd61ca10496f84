-- Leases of these records. KEYS: records. Returns {key, handle, 1 live or 0, label, since, left} for each key that is theirs.
-- Changes nothing.
local found = {}
for _, record_key in ipairs(KEYS) do
  local record = read_record(string.sub(record_key, -32))
  if record and record.state == 'L' then
    for _, key in ipairs(record.keys) do
      local seen = look(key)
      if seen.use == 'x' and seen.record and seen.record.handle == record.handle then
        found[#found + 1] = { key, record.handle, seen.live and 1 or 0, record.holder,
          math.max(now - record.granted, 0), math.max(seen.ends - up, 0) }
      end
    end
  end
end
return found
