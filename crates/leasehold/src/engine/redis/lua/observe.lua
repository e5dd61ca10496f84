-- Somebody watches or lists. KEYS: names that a list found free: they leave the index if they still are. ARGV: 16 hex
-- digits, the name of the run if one begins. Ends by time what is over. Returns {run:complete, first number, last number, ms
-- until the next end or -1}.
if not watch then
  call('DEL', P .. 'ev', P .. 'd', P .. 'i')
  watch = ARGV[1] .. ':0'
  call('SET', P .. 'w', watch, 'PX', '600000')
  call('XADD', P .. 'ev', '0-1', 'e', ARGV[1] .. ' 0 0 ' .. int(now) .. '\n\n\n')
else
  call('PEXPIRE', P .. 'w', '600000')
end
serve(reap())
for _, key in ipairs(KEYS) do
  serve({ key })
  mark_changed(key)
end
tell()
for _, key in ipairs({ 'ev', 'd', 'i' }) do
  call('PEXPIRE', P .. key, '1200000')
end
local first, last = call('XRANGE', P .. 'ev', '-', '+', 'COUNT', '1'), call('XREVRANGE', P .. 'ev', '+', '-', 'COUNT', '1')
if not first[1] then
  corrupt(P .. 'ev')
end
local due = call('ZRANGE', P .. 'd', '0', '0', 'WITHSCORES')
return {
  watch, string.sub(first[1][1], 3), string.sub(last[1][1], 3),
  due[1] and math.max(tonumber(due[2]) - now, 0) or -1,
}
