"""redis-py's Lock, as it comes from PyPI, against a real server, in RESP2 and RESP3."""

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockError, LockNotOwnedError, ResponseError

from servers import PATIENCE, wait_until


def test_a_lock_excludes_and_is_free_after_release(client, name):
    """Goal: what the first page of redis-py's documentation does, works: take, refuse another, release."""
    ada, bob = client.lock(name, timeout=30), client.lock(name, timeout=30)
    assert not ada.locked()
    assert ada.acquire(blocking=False)
    assert ada.locked() and ada.owned()
    assert bob.locked() and not bob.owned()
    assert not bob.acquire(blocking=False)
    ada.release()
    assert not ada.locked()
    assert bob.acquire(blocking=False)
    bob.release()


def test_the_value_is_the_one_the_client_chose(client, name):
    """Goal: a token given by the caller comes back byte for byte, also one that is no text."""
    value = bytes(range(256))[:100]
    lock = client.lock(name, timeout=30)
    assert lock.acquire(token=value)
    assert client.get(name) == value
    lock.release()


def test_a_blocking_acquire_gets_the_lock_when_it_is_released(client, name):
    """Goal: whoever blocks is let in after a release, not before."""
    ada, bob = client.lock(name, timeout=60), client.lock(name, timeout=60, sleep=0.01)
    assert ada.acquire()
    entered = threading.Event()

    def enter():
        assert bob.acquire(blocking=True)
        entered.set()
        bob.release()

    thread = threading.Thread(target=enter)
    thread.start()
    assert not entered.wait(0.2)
    ada.release()
    assert entered.wait(PATIENCE)
    thread.join()


def test_blocking_timeout_gives_up_in_time(client, name):
    """Goal: blocking_timeout answers False after about that long, and the lock stays where it was."""
    ada = client.lock(name, timeout=60)
    assert ada.acquire()
    began = time.monotonic()
    assert not client.lock(name, timeout=60, blocking_timeout=0.3, sleep=0.05).acquire()
    assert 0.2 <= time.monotonic() - began
    assert ada.owned()
    with pytest.raises(LockError):
        with client.lock(name, timeout=60, blocking_timeout=0):
            pytest.fail("the lock is ada's")
    ada.release()


def test_the_context_manager_releases_also_after_an_exception(client, name):
    """Goal: `with` takes and gives back, whatever happens inside."""
    with client.lock(name, timeout=30) as lock:
        assert lock.owned()
    assert client.exists(name) == 0
    with pytest.raises(ZeroDivisionError):
        with client.lock(name, timeout=30):
            1 / 0
    assert client.exists(name) == 0


def test_a_lock_lapses_and_not_early(client, name):
    """Goal: a holder that does nothing keeps the lock for its timeout, and no longer."""
    ada = client.lock(name, timeout=0.4)
    began = time.monotonic()
    assert ada.acquire()
    bob = client.lock(name, timeout=30, sleep=0.005)
    assert bob.acquire(blocking_timeout=PATIENCE)
    assert time.monotonic() - began >= 0.4
    # Ada is late: she must not end the lock that replaced hers.
    with pytest.raises(LockNotOwnedError):
        ada.release()
    assert bob.owned()
    bob.release()


def test_extend_adds_and_replaces(client, name):
    """Goal: extend adds to what is left, and with replace_ttl sets it; also to less."""
    lock = client.lock(name, timeout=100)
    assert lock.acquire()
    assert lock.extend(50)
    assert 120_000 < client.pttl(name) <= 150_000
    assert lock.extend(70, replace_ttl=True)
    assert 40_000 < client.pttl(name) <= 70_000
    assert lock.reacquire()
    assert 70_000 < client.pttl(name) <= 100_000
    lock.release()


def test_a_lost_lock_says_so(client, name):
    """Goal: extend, reacquire and release of a lock that lapsed or is another's raise LockNotOwnedError."""
    for other in (None, b"another"):
        lock = client.lock(name, timeout=0.02)
        assert lock.acquire()
        wait_until("the lock lapses", lambda: client.exists(name) == 0)
        if other:
            assert client.set(name, other, nx=True, px=60_000)
        with pytest.raises(LockNotOwnedError):
            lock.extend(1)
        with pytest.raises(LockNotOwnedError):
            lock.reacquire()
        with pytest.raises(LockNotOwnedError):
            lock.release()
        assert not lock.owned()
        assert client.get(name) == other
    assert client.delete(name) == 1


def test_a_released_lock_is_not_released_twice(client, name):
    """Goal: the client's own bookkeeping is as with Redis."""
    lock = client.lock(name, timeout=30)
    assert lock.acquire()
    lock.release()
    with pytest.raises(LockError, match="already unlocked"):
        lock.release()
    with pytest.raises(LockError):
        lock.extend(1)


def test_a_lock_without_a_timeout_is_refused_in_a_sentence(client, name):
    """Goal: redis-py's default, a lock that never ends, is not quietly made into something else."""
    with pytest.raises(ResponseError, match="^INVALID SET NX without an expiry .* add PX ms or EX s$"):
        client.lock(name).acquire()
    assert client.exists(name) == 0


def test_a_lock_belongs_to_its_thread_unless_told_otherwise(client, name):
    """Goal: thread_local, redis-py's default, keeps the value from other threads; without it they share it."""

    def in_thread(work):
        errors = []

        def run():
            try:
                work()
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(PATIENCE)
        return errors

    mine = client.lock(name, timeout=60, thread_local=True)
    assert mine.acquire()
    # redis-py 8.1 has no value there at all, and says so by an AttributeError instead of a LockError.
    (error,) = in_thread(mine.release)
    assert isinstance(error, (LockError, AttributeError))
    assert mine.owned()
    mine.release()

    shared = client.lock(name, timeout=60, thread_local=False)
    assert shared.acquire()
    assert in_thread(shared.release) == []
    assert client.exists(name) == 0


def test_pipelines(client, name):
    """Goal: commands in one write are answered in order; a refusal among them is one answer, not the end."""
    pipe = client.pipeline(transaction=False)
    pipe.set(name, "ada", nx=True, px=60_000)
    pipe.set(name, "bob", nx=True, px=60_000)
    pipe.get(name)
    pipe.set(name, "eve")
    pipe.pttl(name)
    pipe.delete(name)
    pipe.exists(name)
    taken, refused, value, error, left, deleted, exists = pipe.execute(raise_on_error=False)
    assert (taken, refused, value, deleted, exists) == (True, None, b"ada", 1, 0)
    assert isinstance(error, ResponseError) and str(error).startswith("INVALID SET without NX")
    assert 0 < left <= 60_000


def test_transactions_are_refused_in_a_sentence(client, name):
    """Goal: MULTI never half-works: nothing in it takes effect."""
    pipe = client.pipeline(transaction=True)
    pipe.set(name, "ada", nx=True, px=60_000)
    with pytest.raises(ResponseError, match="MULTI is not supported"):
        pipe.execute()
    assert client.exists(name) == 0


def test_a_pipeline_of_a_thousand(client, name):
    """Goal: many commands in flight on one connection, each answered, none mixed up."""
    names = [f"{name}/{number}" for number in range(1000)]
    pipe = client.pipeline(transaction=False)
    for number, each in enumerate(names):
        pipe.set(each, str(number), nx=True, px=600_000)
    assert pipe.execute() == [True] * 1000
    for each in names:
        pipe.get(each)
    assert pipe.execute() == [str(number).encode() for number in range(1000)]
    for each in names:
        pipe.delete(each)
    assert pipe.execute() == [1] * 1000


def test_one_command_names_at_most_64_keys(client, name):
    """Goal: more keys than a lease may have are refused before any of them is touched."""
    assert client.set(f"{name}/0", "ada", nx=True, px=60_000)
    with pytest.raises(ResponseError, match="^INVALID at most 64 keys at once, got 65$"):
        client.delete(*[f"{name}/{number}" for number in range(65)])
    assert client.delete(*[f"{name}/{number}" for number in range(64)]) == 1


def test_the_asynchronous_lock(leasehold, name):
    """Goal: redis.asyncio's Lock is the same lock."""

    async def run():
        async with redis.asyncio.Redis(port=leasehold.port) as client:
            async with client.lock(name, timeout=60) as lock:
                assert await lock.owned()
                assert not await client.lock(name, timeout=60).acquire(blocking=False)
                assert await lock.extend(60)
                assert await lock.reacquire()
            assert not await lock.locked()
            short = client.lock(name, timeout=0.02)
            assert await short.acquire()
            while await short.locked():
                await asyncio.sleep(0.01)
            with pytest.raises(LockNotOwnedError):
                await short.release()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_two_processes_never_meet(leasehold, name, tmp_path):
    """Goal: mutual exclusion as seen by the thing protected.

    Method: two processes, 200 rounds each, count in a file that knows no locking; see contender.py.
    """
    counter = tmp_path / "counter"
    counter.write_text("0")
    command = [sys.executable, str(Path(__file__).with_name("contender.py")), str(leasehold.port), name, str(counter)]
    contenders = [subprocess.Popen([*command, "200"], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for contender in contenders:
        _, err = contender.communicate(timeout=2 * PATIENCE)
        assert contender.returncode == 0, err
    assert counter.read_text() == "400"
