-- ARGV: a token, or ''. Raises the counter to it, and returns the counter as text.
local function is_less(one, other)
  if #one ~= #other then
    return #one < #other
  end
  return one < other
end
local current = call('GET', P .. 't') or '0'
local clock_text = int(seconds * 1000000 + micros)
if is_less(current, '1000000000000000') then -- the counter was lost
  current = is_less(current, clock_text) and clock_text or current
  call('SET', P .. 't', current)
end
if ARGV[1] ~= '' and is_less(current, ARGV[1]) then
  current = ARGV[1]
  call('SET', P .. 't', current)
end
return current
