"""Several threads that want the same lock by kazoo: HOSTS PATH COUNTER ROUNDS THREADS.

Inside the lock each reads a number from a file, takes its time, and writes the next one. It also makes a file that
must not be there yet. Without mutual exclusion increments are lost, and the file is found.
"""

import os
import sys
import threading
import time
import traceback

from kazoo.client import KazooClient


def enter(counter):
    inside = os.open(counter + ".inside", os.O_CREAT | os.O_EXCL)
    with open(counter) as file:
        number = int(file.read())
    time.sleep(0.0005)
    with open(counter, "w") as file:
        file.write(str(number + 1))
    os.close(inside)
    os.unlink(counter + ".inside")


def contend(client, path, counter, rounds):
    try:
        lock = client.Lock(path, "kazoo")
        for _ in range(rounds):
            with lock:
                enter(counter)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main():
    hosts, path, counter, rounds, threads = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    client = KazooClient(hosts=hosts, timeout=10)
    client.start()
    running = [threading.Thread(target=contend, args=(client, path, counter, rounds)) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    client.stop()


main()
