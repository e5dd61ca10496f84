-- KEYS: the record, the key of each name. ARGV: 1 px - 1, 2 px, 3 px of the record, 4 static part of the record,
-- 5 "wait instance waiters_per_name".
local handle = string.sub(KEYS[1], -32)
local claim = parse_record(handle, 'L' .. ARGV[4] .. '0 0 0')
local wait, instance, most = string.match(ARGV[5], '^(%d+) (%S+) (%d+)$')
wait, most = tonumber(wait), tonumber(most)

serve(reap())

local earlier = read_record(handle)
if earlier and earlier.state == 'W' and earlier.patience <= now then
  leave_queues(earlier)
  call('DEL', KEYS[1])
  serve(earlier.keys)
  earlier = nil
end
if earlier then
  local reply
  if earlier.state == 'X' then
    reply = { 'X' }
  elseif earlier.fingerprint ~= claim.fingerprint then
    reply = { 'M' }
  elseif claim.fingerprint == '-' and earlier.secret ~= claim.secret then
    reply = { 'C' }
  elseif earlier.state == 'W' then
    earlier.patience = math.max(earlier.patience, up + wait)
    if not string.find(',' .. earlier.instances .. ',', ',' .. instance .. ',', 1, true) then
      earlier.instances = earlier.instances .. ',' .. instance
    end
    write_waiter(earlier)
    reply = waiting_reply(earlier)
  else
    reply = granted_reply(earlier, 0)
  end
  tell()
  return reply
end

for _, key in ipairs(claim.keys) do
  if call('EXISTS', P .. 'q:' .. key) == 1 then
    serve({ key }) -- those who wait come before us
  end
end

-- The capacity of a name in use: of its holders, or of the first living waiter for permits.
local function known_capacity(key, seen, wanted)
  if seen.use == 'p' then
    return seen.capacity
  end
  local places = call('ZRANGE', P .. 'q:' .. key, '0', '-1', 'WITHSCORES')
  for at = 1, #places, 2 do
    local mode = mode_of(places[at])
    if mode.letter == 'p' then
      if mode.capacity == wanted then
        return wanted
      end
      local waiter = waiter_at(places[at], places[at + 1])
      if waiter and waiter.patience > now then
        return mode.capacity
      end
    end
  end
end

-- Drops places of waiters that are dead or out of patience: they keep nobody out. A part of a long queue, another one each
-- time. They block nobody, so nobody has to be served.
local function sweep_queue(key)
  local queue, most_swept, from = P .. 'q:' .. key, 256, 0
  local length = call('ZCARD', queue)
  if length > most_swept then
    from = micros % (length - most_swept + 1)
  end
  local places = call('ZRANGE', queue, int(from), int(from + most_swept - 1), 'WITHSCORES')
  for at = 1, #places, 2 do
    local waiter = waiter_at(places[at], places[at + 1])
    if not waiter then
      call('ZREM', queue, places[at])
      mark_changed(key)
    elseif waiter.patience <= now then
      leave_queues(waiter) -- its record stays: its process asks what was in the way
    end
  end
end

local blocked
for at, key in ipairs(claim.keys) do
  local mode, seen = claim.modes[at], look(key)
  if mode.letter == 'p' then
    local capacity = known_capacity(key, seen, mode.capacity)
    if capacity and capacity ~= mode.capacity then
      tell()
      return { 'I', key, int(capacity), int(mode.capacity) }
    end
  end
  if not blocked and (not admits(seen, mode) or queue_blocks(key, mode, seen, nil)) then
    blocked = key
  end
end

local reply
if not blocked then
  local life = grant(claim)
  reply = { 'G', claim.token, life, cap_left(claim), claim.secret, 1 }
elseif wait == 0 then
  reply = held_reply(blocked)
else
  for _, key in ipairs(claim.keys) do
    if call('ZCARD', P .. 'q:' .. key) >= most then
      sweep_queue(key)
    end
    if call('ZCARD', P .. 'q:' .. key) >= most then
      reply = { 'F', key }
      break
    end
  end
end
if not reply then
  claim.arrival = call('INCR', P .. 'a')
  claim.since, claim.patience, claim.instances = now, up + wait, instance
  write_waiter(claim)
  for at, key in ipairs(claim.keys) do
    call('ZADD', P .. 'q:' .. key, int(claim.arrival), handle .. ' ' .. claim.mode_texts[at])
    call('PEXPIRE', P .. 'q:' .. key, '7200000')
  end
  index_names(claim)
  reply = waiting_reply(claim)
end
tell()
return reply
