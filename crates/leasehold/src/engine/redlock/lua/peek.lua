-- What is known of a handle. KEYS: the record. Returns {secret, fingerprint, 1 live or 0}, or nothing.
local record = read_record(string.sub(KEYS[1], -32))
if not record or record.state == 'X' or record.state == 'W' then
  return false
end
return { record.secret, record.fingerprint, record.state == 'L' and end_of(record) and 1 or 0 }
