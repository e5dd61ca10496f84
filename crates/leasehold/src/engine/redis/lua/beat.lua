-- Heartbeat, poll and timer in one. KEYS: records of this process that wait. ARGV: their fingerprints. Returns for each
-- {W, …}, {G, …}, or {N}: forgotten.
local freed = reap()
local todo, seen = {}, {}
push_all(todo, freed)
for at, record_key in ipairs(KEYS) do
  local record = read_record(string.sub(record_key, -32))
  if record and record.state == 'W' and record.fingerprint == ARGV[at] then
    call('PEXPIRE', record_key, int(WAITER_MS))
    for _, key in ipairs(record.keys) do
      if not seen[key] then
        seen[key] = true
        todo[#todo + 1] = key
      end
    end
  end
end
serve(todo)
local replies = {}
for at, record_key in ipairs(KEYS) do
  local record = read_record(string.sub(record_key, -32))
  if not record or record.state == 'X' or record.fingerprint ~= ARGV[at] then
    replies[at] = { 'N' }
  elseif record.state == 'W' then
    replies[at] = waiting_reply(record)
  else
    replies[at] = granted_reply(record, 1)
  end
end
tell()
return replies
