-- The first common part of all scripts: time, records, what a key shows, and who holds it.
--
-- A script reads TIME once. A span ends at `up` + span and is over when `now` has reached its end. Redis keeps a key
-- through the millisecond it is set to, so a key is set to its end minus 1: the key exists exactly as long as the lease.
-- Numbers are passed to Redis as text: it prints a number with 17 digits, which is slow.

local P = '@P@'
local call = redis.call
local WAITER_MS = @WAITER_MS@ -- how long a waiter is believed to be alive without a word of its process
local KEEP_MS = 600000 -- how long an ending is remembered
local MAX_SAFE = 9007199254740991 -- the last whole number that Lua tells from the next one

local clock = call('TIME')
local seconds, micros = tonumber(clock[1]), tonumber(clock[2])
local now = seconds * 1000 + math.floor(micros / 1000)
local up = seconds * 1000 + math.ceil(micros / 1000)
local watch = call('GET', P .. 'w') -- somebody watches or lists
-- What one call does at most: one that serves hundreds would hold up everybody else.
local grants_left = 64
local drops_left = 256 -- places of waiters that are dead or out of patience
local MAX_WALKED = 256 -- waiters who cannot be served, before one who might be
local owed = {} -- keys where a limit ended the work: somebody who waits there is told to look at once
local changed, changed_keys = {}, {} -- keys whose holders or queue changed

local function int(number)
  return string.format('%d', number)
end

local function corrupt(key)
  error({ err = 'CORRUPT ' .. key })
end

local function mark_changed(key)
  if not changed[key] then
    changed[key] = true
    changed_keys[#changed_keys + 1] = key
  end
end

local function push_all(list, more)
  for _, item in ipairs(more) do
    list[#list + 1] = item
  end
end

-- Records -----------------------------------------------------------------------------------------------------------

local function parse_mode(text)
  local letter = string.sub(text, 1, 1)
  if letter ~= 'p' then
    return { letter = letter, count = 0, capacity = 0 }
  end
  local count, capacity = string.match(text, '^p(%d+)/(%d+)$')
  return { letter = 'p', count = tonumber(count), capacity = tonumber(capacity) }
end

local function parse_record(handle, raw)
  if raw == 'X' then
    return { handle = handle, state = 'X', keys = {} }
  end
  local state, static, tail = string.match(raw, '^([LWRV])(.*\n)([^\n]*)$')
  if not state then
    corrupt(P .. 'l:' .. handle)
  end
  local kind, secret, ttl, cap, delay, fingerprint, holder, wants =
    string.match(static, '^([1m])(%x+) (%d+) (%d+) (%d+) (%S+)\n([^\n]*)\n(.*)$')
  if not wants then
    corrupt(P .. 'l:' .. handle)
  end
  local record = {
    handle = handle, state = state, static = static, tail = tail, kind = kind, secret = secret, ttl = tonumber(ttl),
    cap = tonumber(cap), delay = tonumber(delay), fingerprint = fingerprint, holder = holder, wants = wants,
    keys = {}, modes = {}, mode_texts = {},
  }
  for mode, key in string.gmatch(wants, '(%S+) ([^\n]*)\n') do
    local at = #record.keys + 1
    record.keys[at], record.modes[at], record.mode_texts[at] = key, parse_mode(mode), mode
  end
  if state == 'W' then
    local patience, since, arrival, instances = string.match(tail, '^(%d+) (%d+) (%d+) (%S+)$')
    if not instances then
      corrupt(P .. 'l:' .. handle)
    end
    record.patience, record.since, record.arrival = tonumber(patience), tonumber(since), tonumber(arrival)
    record.instances = instances
  else
    local token, s, us, from = string.match(tail, '^(%d+) (%d+) (%d+)( ?[%x ]*)$')
    if not us then
      corrupt(P .. 'l:' .. handle)
    end
    record.grant_tail, record.by, record.number = token .. ' ' .. s .. ' ' .. us, string.match(from, '^ (%x+) (%d+)$')
    record.token = token
    record.granted = tonumber(s) * 1000 + math.ceil(tonumber(us) / 1000)
  end
  return record
end

local function read_record(handle)
  local raw = call('GET', P .. 'l:' .. handle)
  return raw and parse_record(handle, raw) or nil
end

local function write_waiter(record)
  record.tail = int(record.patience) .. ' ' .. int(record.since) .. ' ' .. int(record.arrival) .. ' ' .. record.instances
  call('SET', P .. 'l:' .. record.handle, 'W' .. record.static .. record.tail, 'PX', int(WAITER_MS))
end

-- Whether the process has sent a later change of this lease: then this one was sent again meanwhile, or given up.
local function is_late(record, by, number)
  return by and record.by == by and tonumber(number) < tonumber(record.number)
end

-- The tail of a lease after this change.
local function changed_tail(record, by, number)
  return by and record.grant_tail .. ' ' .. by .. ' ' .. number or record.tail
end

local function ring_has(handle, secret)
  return call('HGET', P .. 'z', string.sub(handle, 1, 4)) == handle .. secret .. 'R'
end

-- A token is text: from 2^53 on Lua cannot count. It is read before it is written: one write for each grant.
local function next_token()
  local last, token = call('GET', P .. 't'), seconds * 1000000 + micros
  if last and tonumber(last) >= token then
    token = call('INCR', P .. 't')
    return token <= MAX_SAFE and int(token) or call('GET', P .. 't')
  end
  call('SET', P .. 't', int(token)) -- never behind the clock: the counter may be an older one than it was
  return int(token)
end

-- Events, only while somebody watches ---------------------------------------------------------------------------------

local function add_event(kind, record, reason)
  if watch then
    local names = string.gsub(record.wants, '%S+ ([^\n]*)\n', '%1\n')
    local head = string.sub(watch, 1, 16) .. ' ' .. kind .. ' ' .. record.token .. ' ' .. int(now)
    call('XADD', P .. 'ev', 'MAXLEN', '~', '16384', '0-*', 'e',
      head .. '\n' .. record.holder .. '\n' .. reason .. '\n' .. names)
  end
end

local function index_names(record)
  if watch then
    for _, key in ipairs(record.keys) do
      call('ZADD', P .. 'i', '0', key)
    end
  end
end

-- What a key shows ----------------------------------------------------------------------------------------------------

local function member_of(record, at)
  local token = string.rep('0', 20 - #record.token) .. record.token
  return token .. ':' .. record.handle .. ':' .. int(record.modes[at].count) .. ':' .. int(record.delay)
end

local function parse_member(member)
  local token, handle, count, delay = string.match(member, '^(%d+):(%x+):(%d+):(%d+)$')
  return handle, tonumber(count), tonumber(delay), token
end

-- When an existing key will be gone. A key of ours always has an end, unless somebody took it away.
local function gone_at(key)
  local at = call('PEXPIRETIME', key)
  return at >= 0 and at + 1 or now + 86400000
end

-- The end of a lease whose key will be gone then. A key is never set to a moment that has passed, so the cap is compared too.
local function end_by_key(record, gone)
  local ends = gone - record.delay
  return record.cap > 0 and math.min(ends, record.granted + record.cap) or ends
end

local function get_text(key)
  local value = redis.pcall('GET', key)
  if type(value) ~= 'table' then
    return value
  end
  if string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then
    error(value)
  end
  return 'WRONGTYPE'
end

-- use: '-' free, 'x' one holder (ours, a stranger, or closed), 's' readers, 'p' permits.
local function look(key)
  local value = get_text(key)
  if not value then
    return { use = '-' }
  end
  local letter = string.sub(value, 1, #P) == P and string.sub(value, #P + 1, #P + 1) or ''
  if letter == 'l' then
    local handle, gone = string.sub(value, #P + 3), gone_at(key)
    if gone <= now then
      return { use = '-' }
    end
    local record = read_record(handle)
    if not record or record.state ~= 'L' then
      return { use = 'x', gone = gone } -- its record is lost: closed until the key expires
    end
    local ends = end_by_key(record, gone)
    if ends + record.delay <= now then
      return { use = '-' }
    end
    return { use = 'x', gone = ends + record.delay, record = record, ends = ends, live = now < ends }
  end
  if letter ~= 's' and letter ~= 'p' then
    return { use = 'x', foreign = true }
  end
  local over = call('ZRANGEBYSCORE', P .. 'h:' .. key, '-inf', int(now))
  local count = call('ZCARD', P .. 'h:' .. key) - #over
  if count == 0 then
    return { use = '-', over = #over }
  end
  local capacity, used = 0, 0
  if letter == 'p' then
    capacity, used = string.match(value, ':(%d+):(%d+)$')
    capacity, used = tonumber(capacity), tonumber(used)
    for _, member in ipairs(over) do
      local _, permits = parse_member(member)
      used = used - permits
    end
  end
  return { use = letter, count = count, capacity = capacity, used = used, over = #over }
end

local function next_change(key, seen)
  if seen.use == 'x' then
    return seen.gone
  elseif seen.use ~= '-' then
    local first = call('ZRANGEBYSCORE', P .. 'h:' .. key, '(' .. int(now), '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
    return tonumber(first[2])
  end
end

local function admits(seen, mode)
  if seen.use == '-' or (seen.use == 's' and mode.letter == 's') then
    return true
  end
  return seen.use == 'p' and mode.letter == 'p' and seen.used + mode.count <= mode.capacity
end

local function add_demand(ahead, mode)
  ahead[mode.letter] = ahead[mode.letter] + (mode.letter == 'p' and mode.count or 1)
end

-- Whether earlier claims conflict with this one: it would not be admitted beside them.
local function blocks(ahead, mode, seen)
  if ahead.x > 0 then
    return true
  elseif mode.letter == 'x' then
    return ahead.s > 0 or ahead.p > 0
  elseif mode.letter == 's' then
    return ahead.p > 0
  end
  local used = seen.use == 'p' and seen.used or 0
  return ahead.s > 0 or (ahead.p > 0 and used + ahead.p + mode.count > mode.capacity)
end

-- Holders -------------------------------------------------------------------------------------------------------------

local function write_crowd(key, letter, capacity, used)
  local holders = P .. 'h:' .. key
  local last = call('ZRANGE', holders, '-1', '-1', 'WITHSCORES')
  local at = math.max(tonumber(last[2]) - 1, now + 1)
  local value = letter == 's' and P .. 's' or P .. 'p:' .. int(capacity) .. ':' .. int(used)
  call('SET', key, value, 'PXAT', int(at))
  call('PEXPIREAT', holders, int(at + 1000))
end

-- Removes holders whose time is over, and says what is left.
local function prune(key)
  local seen = look(key)
  if (seen.over or 0) > 0 then
    if seen.use == '-' then
      call('DEL', key, P .. 'h:' .. key)
    else
      call('ZREMRANGEBYSCORE', P .. 'h:' .. key, '-inf', int(now))
      write_crowd(key, seen.use, seen.capacity, seen.used)
    end
    seen.over = 0
  end
  return seen
end

local function hold(record, at, ends)
  local key, mode = record.keys[at], record.modes[at]
  mark_changed(key)
  if mode.letter == 'x' then
    call('SET', key, P .. 'l:' .. record.handle, 'PXAT', int(math.max(ends + record.delay - 1, now + 1)))
    return
  end
  local seen = prune(key)
  if seen.use == '-' then
    call('DEL', P .. 'h:' .. key)
  end
  call('ZADD', P .. 'h:' .. key, int(ends + record.delay), member_of(record, at))
  write_crowd(key, mode.letter, mode.capacity, (seen.used or 0) + mode.count)
end

-- The end of a live lease; nothing if any of its names is not its own any more, or its time is over.
local function end_of(record)
  local first
  for at, key in ipairs(record.keys) do
    local value, ends = get_text(key), nil
    if record.modes[at].letter == 'x' then
      ends = value == P .. 'l:' .. record.handle and end_by_key(record, gone_at(key))
    elseif value and string.sub(value, 1, #P + 1) == P .. record.modes[at].letter then
      local score = call('ZSCORE', P .. 'h:' .. key, member_of(record, at))
      ends = score and tonumber(score) - record.delay
    end
    if not ends or ends <= now then
      return nil
    end
    first = math.min(first or ends, ends)
  end
  return first
end

-- Frees every name that is still this lease's.
local function vacate(record)
  for at, key in ipairs(record.keys) do
    local mode = record.modes[at]
    if mode.letter == 'x' then
      if get_text(key) == P .. 'l:' .. record.handle then
        call('DEL', key)
        mark_changed(key)
      end
    else
      local seen = prune(key)
      if seen.use == mode.letter and call('ZREM', P .. 'h:' .. key, member_of(record, at)) == 1 then
        mark_changed(key)
        if seen.count == 1 then
          call('DEL', key, P .. 'h:' .. key)
        else
          write_crowd(key, seen.use, seen.capacity, seen.used - mode.count)
        end
      end
    end
  end
end

local function grant(record)
  record.token = next_token()
  local life = record.cap > 0 and math.min(record.ttl, record.cap) or record.ttl
  local ends = up + life
  for at in ipairs(record.keys) do
    hold(record, at, ends)
  end
  record.state, record.granted = 'L', up
  record.tail = record.token .. ' ' .. clock[1] .. ' ' .. clock[2]
  call('SET', P .. 'l:' .. record.handle, 'L' .. record.static .. record.tail, 'PXAT', int(ends + record.delay + KEEP_MS))
  if watch then
    add_event('g', record, '')
    call('ZADD', P .. 'd', int(ends), record.handle)
    index_names(record)
  end
  return life
end

-- Ends a lease: 'R' released, 'V' revoked.
local function finish(record, state, reason, keep)
  vacate(record)
  if watch then
    call('ZREM', P .. 'd', record.handle)
    add_event(state == 'R' and 'r' or 'v', record, reason)
  end
  if state == 'R' and not keep and record.fingerprint == '-' then
    call('DEL', P .. 'l:' .. record.handle)
    call('HSET', P .. 'z', string.sub(record.handle, 1, 4), record.handle .. record.secret .. 'R')
  else
    call('SET', P .. 'l:' .. record.handle, state .. record.static .. record.tail, 'PX', int(KEEP_MS))
  end
end

local function cap_left(record)
  return record.cap > 0 and math.max(record.granted + record.cap - up, 0) or -1
end

-- A lease as a reply: granted, now or before.
local function granted_reply(record, fresh)
  local ends = record.state == 'L' and end_of(record)
  return { 'G', record.token, ends and math.max(ends - up, 0) or 0, ends and cap_left(record) or -1, record.secret, fresh }
end
