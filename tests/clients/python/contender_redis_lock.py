"""One of several processes that want the same lock, by python-redis-lock: PORT NAME COUNTER ROUNDS. See contender.py."""

import os
import sys
import time

import redis
import redis_lock


def main():
    port, name, counter, rounds = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    client = redis.StrictRedis(port=port)
    for _ in range(rounds):
        with redis_lock.Lock(client, name, expire=60):
            inside = os.open(counter + ".inside", os.O_CREAT | os.O_EXCL)
            with open(counter) as file:
                number = int(file.read())
            time.sleep(0.0005)
            with open(counter, "w") as file:
                file.write(str(number + 1))
            os.close(inside)
            os.unlink(counter + ".inside")


main()
