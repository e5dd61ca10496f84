-- A waiting acquire is given up. KEYS: the record. ARGV: 1 instance, 2 'cancel' or 'patience', 3 fingerprint, 4 key of the
-- first name, 5 secret, 6 ban in ms or 0.
local handle, cancel, anonymous = string.sub(KEYS[1], -32), ARGV[2] == 'cancel', ARGV[3] == '-'
serve(reap())
local record = read_record(handle)
if record and record.state ~= 'X' and (record.fingerprint ~= ARGV[3] or (anonymous and record.secret ~= ARGV[5])) then
  record = nil -- the id was used again, for another claim
  cancel = false
end

local function ban_or_forget()
  if anonymous and ARGV[6] ~= '0' then
    call('SET', KEYS[1], 'X', 'PX', ARGV[6]) -- a try that is still on its way takes nothing
  else
    call('DEL', KEYS[1])
  end
end

local reply
if record and record.state == 'W' then
  local left = record.patience - now
  local others = ''
  for instance in string.gmatch(record.instances, '[^,]+') do
    if instance ~= ARGV[1] then
      others = others .. (others == '' and '' or ',') .. instance
    end
  end
  if not cancel and left > 2 then
    reply = { 'O', left }
  elseif cancel and others ~= '' then
    record.instances = others
    write_waiter(record)
    reply = { 'O', left }
  else
    local blocked = record.keys[1]
    for at, key in ipairs(record.keys) do
      local first = call('ZRANGE', P .. 'q:' .. key, '0', '0', 'WITHSCORES')
      if not admits(look(key), record.modes[at]) or (first[1] and tonumber(first[2]) < record.arrival) then
        blocked = key
        break
      end
    end
    leave_queues(record)
    reply = held_reply(blocked)
    ban_or_forget()
    serve(record.keys)
  end
elseif not record or record.state == 'X' then
  if not record and cancel then
    ban_or_forget()
  end
  reply = held_reply(ARGV[4])
elseif record.state == 'L' and cancel and anonymous then
  if end_of(record) then
    finish(record, 'R', '', true)
    serve(record.keys)
  end
  reply = { 'E' }
else
  reply = granted_reply(record, 1)
end
tell()
return reply
