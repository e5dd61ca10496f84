return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))
