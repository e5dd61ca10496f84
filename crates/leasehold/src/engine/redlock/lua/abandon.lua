-- A try that failed: ends what it took here, and keeps it from taking anything later. KEYS: the record. ARGV: secret, ban in ms.
-- Returns 1 ended, 0 there was nothing, 2 another call of the same request has joined it, and it stays.
local handle = string.sub(KEYS[1], -32)
if call('EXISTS', P .. 'j:' .. ARGV[1]) == 1 then
  return 2
end
call('SET', P .. 'b:' .. ARGV[1], '1', 'PX', ARGV[2])
local record = read_record(handle)
if not record or record.state ~= 'L' or record.secret ~= ARGV[1] then
  return 0
end
serve(reap())
local was_live = end_of(record)
vacate(record)
if watch then
  call('ZREM', P .. 'd', handle)
  if was_live then
    add_event('r', record, '')
  end
end
call('DEL', KEYS[1]) -- a refusal is not remembered
serve(record.keys)
tell()
return 1
