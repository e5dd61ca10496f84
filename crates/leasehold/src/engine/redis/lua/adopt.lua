-- Puts leases and waiters that were there before the watch into its index. KEYS: records. ARGV: run, '1' with the last.
if not watch or string.sub(watch, 1, 16) ~= ARGV[1] then
  return 0
end
for _, record_key in ipairs(KEYS) do
  local handle = string.sub(record_key, -32)
  local record = read_record(handle)
  if record and record.state == 'L' then
    local ends = end_of(record)
    if ends then
      call('ZADD', P .. 'd', int(ends), handle)
    end
    for _, key in ipairs(record.keys) do
      if look(key).use ~= '-' then
        call('ZADD', P .. 'i', '0', key)
      end
    end
  elseif record and record.state == 'W' then
    index_names(record)
  end
end
if ARGV[2] == '1' then
  call('SET', P .. 'w', ARGV[1] .. ':1', 'KEEPTTL')
end
return 1
