"""The scripts that lock clients send, as they stand in the clients' own sources.

redis-py's are taken from the package itself; the others are copied from redlock 4.2.0 (npm), rslock 0.10.0 and
redis-semaphore 5.8.0. The real clients send their own copies in the tests beside; here both servers get the same.
"""

from redis.lock import Lock

REDIS_PY_RELEASE = Lock.LUA_RELEASE_SCRIPT
REDIS_PY_EXTEND = Lock.LUA_EXTEND_SCRIPT
REDIS_PY_REACQUIRE = Lock.LUA_REACQUIRE_SCRIPT

REDLOCK_ACQUIRE = """
	-- Return 0 if an entry already exists.
	for i, key in ipairs(KEYS) do
		if redis.call("exists", key) == 1 then
			return 0
		end
	end

	-- Create an entry for each provided key.
	for i, key in ipairs(KEYS) do
		redis.call("set", key, ARGV[1], "PX", ARGV[2])
	end

	-- Return the number of entries added.
	return #KEYS
"""

REDLOCK_RELEASE = """
	local count = 0
	for i, key in ipairs(KEYS) do
		-- Only remove entries for *this* lock value.
		if redis.call("get", key) == ARGV[1] then
			redis.pcall("del", key)
			count = count + 1
		end
	end

	-- Return the number of entries removed.
	return count
"""

REDLOCK_EXTEND = """
	-- Return 0 if an entry exists with a *different* lock value.
	for i, key in ipairs(KEYS) do
		if redis.call("get", key) ~= ARGV[1] then
			return 0
		end
	end

	-- Update the entry for each provided key.
	for i, key in ipairs(KEYS) do
		redis.call("set", key, ARGV[1], "PX", ARGV[2])
	end

	-- Return the number of entries updated.
	return #KEYS
"""

RSLOCK_RELEASE = """
if redis.call("GET", KEYS[1]) == ARGV[1] then
  return redis.call("DEL", KEYS[1])
else
  return 0
end
"""

RSLOCK_EXTEND = """
if redis.call("get", KEYS[1]) ~= ARGV[1] then
  return 0
else
  if redis.call("set", KEYS[1], ARGV[1], "PX", ARGV[2]) ~= nil then
    return 1
  else
    return 0
  end
end
"""

SEMAPHORE_RELEASE = """
  local key = KEYS[1]
  local identifier = ARGV[1]

  if redis.call('get', key) == identifier then
    return redis.call('del', key)
  end

  return 0
  """

SEMAPHORE_EXTEND = """
  local key = KEYS[1]
  local identifier = ARGV[1]
  local lockTimeout = ARGV[2]

  local value = redis.call('get', key)

  if value == identifier then
    redis.call('pexpire', key, lockTimeout)
    return 1
  end

  return 0
  """

#: Scripts over one key with a value, and what follows the value: nothing, a time, or a time and a flag.
ONE_KEY = [
    (REDIS_PY_RELEASE, "release"),
    (REDIS_PY_EXTEND, "extend"),
    (REDIS_PY_REACQUIRE, "time"),
    (RSLOCK_RELEASE, "release"),
    (RSLOCK_EXTEND, "time"),
    (SEMAPHORE_RELEASE, "release"),
    (SEMAPHORE_EXTEND, "time"),
]

#: Scripts over several keys.
MANY_KEYS = [
    (REDLOCK_ACQUIRE, "time"),
    (REDLOCK_RELEASE, "release"),
    (REDLOCK_EXTEND, "time"),
]

ALL = [text for text, _ in ONE_KEY + MANY_KEYS]
