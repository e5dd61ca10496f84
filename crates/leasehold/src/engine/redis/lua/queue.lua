-- The second common part: queues, who is served, and what is told.

local function leave_queues(record)
  for at, key in ipairs(record.keys) do
    if call('ZREM', P .. 'q:' .. key, record.handle .. ' ' .. record.mode_texts[at]) == 1 then
      mark_changed(key)
    end
  end
end

-- The waiter of a place in a queue; nothing if it is dead, or has come again at another place.
local function waiter_at(member, score)
  local record = read_record(string.sub(member, 1, 32))
  if record and record.state == 'W' and record.arrival == tonumber(score) then
    return record
  end
end

local function mode_of(member)
  return parse_mode(string.sub(member, 34))
end

-- Whether a waiter that came before `arrival` conflicts with a claim of this mode. Nobody passes a queue longer than this
-- looks at.
local function queue_blocks(key, mode, seen, arrival)
  local queue, ahead, at = P .. 'q:' .. key, { x = 0, s = 0, p = 0 }, 0
  while at < MAX_WALKED do
    local places = call('ZRANGE', queue, int(at), int(at + 15), 'WITHSCORES')
    for place = 1, #places, 2 do
      if arrival and tonumber(places[place + 1]) >= arrival then
        return false
      end
      local waiter = waiter_at(places[place], places[place + 1])
      if waiter and waiter.patience > now then
        add_demand(ahead, mode_of(places[place]))
        if blocks(ahead, mode, seen) then
          return true
        end
      end
    end
    if #places < 32 then
      return false
    end
    at = at + 16
  end
  return true
end

-- Whether every resource admits the waiter, and no earlier one conflicts with it on any of them.
local function grantable(record, served, ahead)
  local seen = {}
  for at, key in ipairs(record.keys) do
    seen[at] = look(key)
    if not admits(seen[at], record.modes[at]) then
      return false
    end
  end
  for at, key in ipairs(record.keys) do
    local mode = record.modes[at]
    if key == served then
      if blocks(ahead, mode, seen[at]) then
        return false
      end
    elseif queue_blocks(key, mode, seen[at], record.arrival) then
      return false
    end
  end
  return true
end

local function publish(instances, text)
  for instance in string.gmatch(instances, '[^,]+') do
    -- A missing permission must not end a script half-way.
    redis.pcall('PUBLISH', P .. 'c:' .. instance, text)
  end
end

local function grant_waiter(record)
  leave_queues(record)
  local instances = record.instances
  local life = grant(record)
  publish(instances, 'G ' .. record.handle .. ' ' .. record.token .. ' ' .. int(life) .. ' ' .. int(cap_left(record)))
end

-- Whether nobody behind these can be granted, whatever he wants.
local function is_closed_behind(ahead, seen)
  if seen.use == 'x' or ahead.x > 0 then
    return true
  elseif ahead.s > 0 and (ahead.p > 0 or seen.use == 'p') then
    return true
  end
  return ahead.p > 0 and seen.use == 'p' and seen.used + ahead.p >= seen.capacity
end

-- Keys to be served, each once; not the one that is being served.
local function add_todo(todo, keys, served)
  for _, key in ipairs(keys) do
    if key ~= served and not todo.pending[key] then
      todo.pending[key] = true
      todo[#todo + 1] = key
    end
  end
end

-- Drops a place whose waiter is dead or out of patience. False if that was enough for one call.
local function drop_place(key, member, waiter, todo)
  if drops_left == 0 then
    owed[key] = true
    mark_changed(key)
    return false
  end
  drops_left = drops_left - 1
  if waiter then
    leave_queues(waiter) -- its record stays: its process asks what was in the way
    add_todo(todo, waiter.keys, key)
  else
    call('ZREM', P .. 'q:' .. key, member)
    mark_changed(key)
  end
  return true
end

local function serve_key(key, todo)
  local queue, ahead, at = P .. 'q:' .. key, { x = 0, s = 0, p = 0 }, 0
  while at < MAX_WALKED do
    local place = call('ZRANGE', queue, int(at), int(at), 'WITHSCORES')
    if not place[1] then
      return
    end
    -- A dead head is dropped even while the key is held: only the head looks when the holder's time is over.
    local waiter = waiter_at(place[1], place[2])
    if not waiter or waiter.patience <= now then
      if not drop_place(key, place[1], waiter, todo) then
        return
      end
    elseif is_closed_behind(ahead, look(key)) then
      return
    elseif not grantable(waiter, key, ahead) then
      add_demand(ahead, mode_of(place[1]))
      at = at + 1
    elseif grants_left == 0 then
      owed[key] = true
      mark_changed(key)
      return
    else
      grants_left = grants_left - 1
      grant_waiter(waiter)
      add_todo(todo, waiter.keys, key) -- its other names may have lapsed unnoticed, and somebody may wait there
    end
  end
end

-- Grants what has become possible on these keys.
local function serve(keys)
  local todo = { pending = {} }
  add_todo(todo, keys)
  while #todo > 0 do
    local key = table.remove(todo)
    todo.pending[key] = nil
    serve_key(key, todo)
  end
end

-- Ends by time what is over, as far as somebody watches. Says which keys it was on.
local function reap()
  local freed = {}
  if watch then
    for _, handle in ipairs(call('ZRANGEBYSCORE', P .. 'd', '-inf', int(now), 'LIMIT', '0', '1000')) do
      call('ZREM', P .. 'd', handle)
      local record = read_record(handle)
      if record and record.state == 'L' then
        local ends = end_of(record)
        if ends then
          call('ZADD', P .. 'd', int(ends), handle)
        else
          add_event('l', record, '')
          push_all(freed, record.keys)
          for _, key in ipairs(record.keys) do
            mark_changed(key)
          end
        end
      end
    end
  end
  return freed
end

-- When a waiter should look again: milliseconds; -1 when it is told; -2 a stranger has it, who tells nobody. Only the
-- head of a queue looks.
local function next_look(record)
  local soonest, head, more = -1, 0, false
  for _, key in ipairs(record.keys) do
    local first = call('ZRANGE', P .. 'q:' .. key, '0', '0')
    if first[1] and string.sub(first[1], 1, 32) == record.handle then
      head, more = 1, more or owed[key]
      local seen = look(key)
      if seen.foreign then
        return -2, 1
      end
      local at = next_change(key, seen)
      if at and (soonest < 0 or at - now < soonest) then
        soonest = math.max(at - now, 0)
      end
    end
  end
  return more and 0 or soonest, head
end

-- A waiter as a reply.
local function waiting_reply(record)
  local soonest, head = next_look(record)
  return { 'W', math.max(record.patience - now, 0), soonest, head, record.secret }
end

-- Somebody alive who waits for this key: among the first, or else among the last.
local function living_waiter(key)
  for _, from in ipairs({ '0', '-16' }) do
    local places = call('ZRANGE', P .. 'q:' .. key, from, from == '0' and '15' or '-1', 'WITHSCORES')
    for at = 1, #places, 2 do
      local waiter = waiter_at(places[at], places[at + 1])
      if waiter and waiter.patience > now then
        return waiter
      end
    end
  end
end

-- Tells the heads of the queues that changed when to look, and those who wait for a list of another kind.
local function tell()
  for _, key in ipairs(changed_keys) do
    local other = owed[key] and living_waiter(key)
    if other then
      publish(other.instances, 'L ' .. other.handle .. ' 0')
    end
    local first = call('ZRANGE', P .. 'q:' .. key, '0', '0')
    local head = first[1] and read_record(string.sub(first[1], 1, 32))
    if other then
      -- It looks, and so tells the head in its turn.
    elseif head and head.state == 'W' then
      local soonest = next_look(head)
      if soonest ~= -1 then
        publish(head.instances, 'L ' .. head.handle .. ' ' .. int(soonest))
      end
    elseif not first[1] and (watch or '@SIGNAL@' ~= '') and look(key).use == '-' then
      if watch then
        call('ZREM', P .. 'i', key)
      end
      if '@SIGNAL@' ~= '' and string.sub(key, 1, #'@K@') == '@K@' then
        local signal = '@SIGNAL@' .. string.sub(key, #'@K@' + 1)
        call('DEL', signal)
        call('LPUSH', signal, '1')
        call('PEXPIRE', signal, '1000')
      end
    end
  end
end

-- What is in the way: the key, its holder, how long it has it, how many wait.
local function held_reply(key)
  local seen = look(key)
  local holder, left, foreign = false, -1, 0
  if seen.foreign then
    foreign = 1
    left = math.max(call('PTTL', key), -1)
  elseif seen.use == 'x' and seen.live then
    holder, left = seen.record.holder, math.max(seen.ends - up, 0)
  elseif seen.use == 's' or seen.use == 'p' then
    local members = call('ZRANGEBYSCORE', P .. 'h:' .. key, '(' .. int(now), '+inf', 'WITHSCORES', 'LIMIT', '0', '100')
    for at = 1, #members, 2 do
      local handle, _, delay = parse_member(members[at])
      local ends = tonumber(members[at + 1]) - delay
      local record = now < ends and read_record(handle)
      if record and record.holder then
        holder, left = record.holder, math.max(ends - up, 0)
        break
      end
    end
  end
  return { 'H', key, holder, left, call('ZCARD', P .. 'q:' .. key), foreign }
end
