"""One of several processes that want the same lock: PORT NAME COUNTER ROUNDS.

Inside the lock it reads a number from a file, takes its time, and writes the next one. It also makes a file that
must not be there yet. Without mutual exclusion increments are lost, and the file is found.
"""

import os
import sys
import time

import redis


def main():
    port, name, counter, rounds = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    client = redis.Redis(port=port)
    lock = client.lock(name, timeout=60, sleep=0.001)
    for _ in range(rounds):
        with lock:
            inside = os.open(counter + ".inside", os.O_CREAT | os.O_EXCL)
            with open(counter) as file:
                number = int(file.read())
            time.sleep(0.0005)
            with open(counter, "w") as file:
                file.write(str(number + 1))
            os.close(inside)
            os.unlink(counter + ".inside")


main()
