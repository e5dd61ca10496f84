-- KEYS: keys. ARGV: holders shown, waiters shown. Changes nothing. Returns for each {mode, {{label, token, since, left}…},
-- holders in all, {{label, waiting}…}, waiters in all}, or nothing.
local most_holders, most_waiters = tonumber(ARGV[1]), tonumber(ARGV[2])

local function show_holder(record, ends)
  return { record.holder, record.token, math.max(now - record.granted, 0), math.max(ends - up, 0) }
end

local function show_holders(key, seen)
  local shown, total = {}, 0
  if seen.foreign then
    return { { '', '', 0, math.max(call('PTTL', key), -1) } }, 1
  elseif seen.use == 'x' then
    if seen.live then
      return { show_holder(seen.record, seen.ends) }, 1
    end
  elseif seen.use ~= '-' then
    local members = call('ZRANGEBYSCORE', P .. 'h:' .. key, '(' .. int(now), '+inf', 'WITHSCORES',
      'LIMIT', '0', int(most_holders))
    for at = 1, #members, 2 do
      local handle, _, delay = parse_member(members[at])
      local ends = tonumber(members[at + 1]) - delay
      local record = now < ends and read_record(handle)
      if record and record.state == 'L' then
        shown[#shown + 1] = show_holder(record, ends)
      end
    end
    total = seen.count > most_holders and seen.count or #shown
  end
  return shown, total
end

local function show_waiters(key)
  local shown, total, head = {}, 0, nil
  local places = call('ZRANGE', P .. 'q:' .. key, '0', '999', 'WITHSCORES')
  for at = 1, #places, 2 do
    local waiter = waiter_at(places[at], places[at + 1])
    if waiter and waiter.patience > now then
      total = total + 1
      head = head or string.sub(places[at], 34)
      if total <= most_waiters then
        shown[total] = { waiter.holder, math.max(now - waiter.since, 0) }
      end
    end
  end
  if #places == 2000 then
    total = total + call('ZCARD', P .. 'q:' .. key) - 1000
  end
  return shown, total, head
end

local replies = {}
for at, key in ipairs(KEYS) do
  local seen = look(key)
  local holders, held = show_holders(key, seen)
  local waiters, waiting, head = show_waiters(key)
  if seen.use == '-' and waiting == 0 then
    replies[at] = false
  else
    local mode = seen.use
    if mode == '-' then
      mode = head
    elseif mode == 'p' then
      mode = 'p' .. int(seen.used) .. '/' .. int(seen.capacity)
    end
    replies[at] = { mode, holders, held, waiters, waiting }
  end
end
return replies
