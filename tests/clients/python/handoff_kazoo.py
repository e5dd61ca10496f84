"""Threads that hand one lock on, by kazoo: HOSTS PATH WAITERS SECONDS. Prints the p50 from a release to the next grant,
in microseconds, and how many there were.

Each thread has a session of its own, as processes would.
"""

import statistics
import sys
import threading
import time

from kazoo.client import KazooClient

released = None
spans = []
ended = False


def contend(client, path):
    global released
    lock = client.Lock(path, "kazoo")
    while not ended:
        lock.acquire()
        if released is not None:
            spans.append(time.monotonic_ns() - released)
        released = time.monotonic_ns()
        lock.release()


def main():
    global ended
    hosts, path, waiters, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    clients = [KazooClient(hosts=hosts, timeout=10) for _ in range(waiters)]
    for client in clients:
        client.start()
    running = [threading.Thread(target=contend, args=(client, path), daemon=True) for client in clients]
    for thread in running:
        thread.start()
    time.sleep(seconds / 4)
    spans.clear()
    time.sleep(seconds)
    ended = True
    found = list(spans)
    print(round(statistics.median(found) / 1000), len(found))
    for thread in running:
        thread.join(10)


main()
