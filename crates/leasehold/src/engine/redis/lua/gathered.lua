-- Plain acquires and releases of several callers in one call. KEYS: record and key of each. ARGV: for each acquire 'a', px - 1,
-- px, px of the record and its static part; for each release 'r', 'L1' and the secret. Returns for each the token, 1 for a
-- release, or 0: nothing was done, and it has to come by itself. -1 instead of all: somebody watches.
--
-- It does what the fast ways of acquire and release do, with fewer commands: whatever is not plainly free or plainly ours is
-- left alone. Releases come first, so that their names are free for the acquires.
local call, sub = redis.call, string.sub
if call('EXISTS', '@P@w') == 1 then
  return -1
end
local replies, acquires, releases, found_keys, free_keys, queues = {}, {}, {}, {}, {}, {}
local at = 1
for item = 1, #KEYS / 2 do
  local record, key = KEYS[2 * item - 1], KEYS[2 * item]
  replies[item] = 0
  if ARGV[at] == 'a' then
    local n = #free_keys
    free_keys[n + 1], free_keys[n + 2], free_keys[n + 3] = record, key, '@P@q:' .. key
    acquires[#acquires + 1] = { item = item, record = record, key = key, at = at }
    at = at + 5
  else
    local n = #found_keys
    found_keys[n + 1], found_keys[n + 2] = record, key
    queues[#queues + 1] = '@P@q:' .. key
    releases[#releases + 1] = { item = item, record = record, key = key, proof = ARGV[at + 1] }
    at = at + 2
  end
end

if #releases > 0 then
  local found, nobody_waits = call('MGET', unpack(found_keys)), call('EXISTS', unpack(queues)) == 0
  local gone, ring, freed = {}, {}, {}
  for number, one in ipairs(releases) do
    local record, key = found[2 * number - 1], found[2 * number]
    if key == one.record and record and sub(record, 1, 34) == one.proof and not freed[one.record]
      and (nobody_waits or call('EXISTS', queues[number]) == 0) then
      freed[one.record] = true
      local n, handle = #gone, sub(one.record, -32)
      gone[n + 1], gone[n + 2] = one.key, one.record
      ring[n + 1], ring[n + 2] = sub(handle, 1, 4), handle .. sub(one.proof, 3) .. 'R'
      replies[one.item] = 1
    end
  end
  if #gone > 0 then
    call('DEL', unpack(gone))
    call('HSET', '@P@z', unpack(ring))
  end
end

if #acquires > 0 then
  local all_free, taken, token = call('EXISTS', unpack(free_keys)) == 0, {}, nil
  local clock = call('TIME')
  local px = tonumber(clock[2]) % 1000 == 0 and 1 or 2
  local tail = ' ' .. clock[1] .. ' ' .. clock[2]
  for number, one in ipairs(acquires) do
    local n = 3 * number
    if not taken[one.key] and not taken[one.record]
      and (all_free or call('EXISTS', one.record, one.key, free_keys[n]) == 0) then
      if not token then
        -- Tokens for all of them at once, before the first lease: never behind the clock, as one by one.
        token = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
        local last = tonumber(call('GET', '@P@t') or '0')
        if last >= 9007199254740000 then
          break -- Lua cannot count there
        elseif last >= token then
          token = last + 1
        end
        call('SET', '@P@t', string.format('%d', token + #acquires - 1))
      end
      local text = string.format('%d', token)
      token = token + 1
      taken[one.key], taken[one.record] = true, true
      call('SET', one.key, one.record, 'PX', ARGV[one.at + px])
      call('SET', one.record, 'L' .. ARGV[one.at + 4] .. text .. tail, 'PX', ARGV[one.at + 3])
      replies[one.item] = text
    end
  end
end
return replies
