"""A lock that a Redis client took is a lease like any other: visible everywhere, with a token, on disk."""

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import pytest
import redis
from redis.exceptions import AuthenticationError, LockNotOwnedError, ResponseError

from servers import Leasehold, wait_until


def http(server, path, key=None, context=None):
    """The status and the JSON of a GET."""
    scheme = "https" if context else "http"
    request = urllib.request.Request(f"{scheme}://localhost:{server.http}{path}")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def lease_get(client, name):
    """LEASE GET as a dictionary, in either version of the protocol."""

    def named(value):
        if isinstance(value, dict):
            return {key.decode(): named(item) for key, item in value.items()}
        if isinstance(value, list) and value and isinstance(value[0], bytes) and len(value) % 2 == 0:
            return {key.decode(): named(item) for key, item in zip(value[::2], value[1::2], strict=True)}
        return [named(item) for item in value] if isinstance(value, list) else value

    return named(client.execute_command("LEASE", "GET", name))


def test_a_lock_is_visible_in_lease_get_and_over_http(leasehold, client, name):
    """Goal: the three ways to look at a lock agree, and none of them shows its value."""
    # The name belongs to a connection: the lock is taken on the same one.
    with client.pipeline(transaction=False) as pipe:
        pipe.execute_command("CLIENT", "SETNAME", "worker-7")
        pipe.set(name, "a-secret-value", nx=True, px=60_000)
        assert pipe.execute() == [b"OK", True]
    seen = lease_get(client, name)
    assert (seen["name"], seen["mode"], seen["waiters"], seen["queue_len"]) == (name.encode(), b"exclusive", [], 0)
    (holder,) = seen["holders"]
    assert holder["holder"].startswith(b"worker-7 ")
    status, body = http(leasehold, f"/v1/resources/{name.replace('/', '%2F')}")
    assert (status, body["name"], body["mode"]) == (200, name, "exclusive")
    assert body["holders"][0]["token"] == str(holder["token"])
    assert body["holders"][0]["holder"] == holder["holder"].decode()
    for left in (holder["remaining_ms"], body["holders"][0]["remaining_ms"], client.pttl(name)):
        assert 30_000 < left <= 60_000
    assert "a-secret-value" not in json.dumps(body) + str(seen)
    client.delete(name)
    assert client.execute_command("LEASE", "GET", name) is None
    # As the reference says: a name that nobody holds is a resource with no holders.
    assert http(leasehold, f"/v1/resources/{name.replace('/', '%2F')}")[1].get("holders", []) == []


def test_tokens_rise_over_successive_holders_and_stay_through_renewals(client, name):
    """Goal: what a fence needs: every new holder has a higher token, an extended one keeps its own."""

    def token():
        return lease_get(client, name)["holders"][0]["token"]

    last = 0
    for round_ in range(6):
        lock = client.lock(name, timeout=60 if round_ % 2 else 0.03)
        assert lock.acquire()
        mine = token() if round_ % 2 else None
        if mine:
            assert mine > last
            assert lock.extend(5) and lock.reacquire()
            assert token() == mine
            last = mine
            lock.release()
        else:
            wait_until("the lock lapses", lambda: not lock.locked())


def test_a_lock_and_a_lease_exclude_each_other(client, name):
    """Goal: SET and LEASE share their names, in both directions."""
    lock = client.lock(name, timeout=60)
    assert lock.acquire()
    with pytest.raises(ResponseError, match="^HELD "):
        client.execute_command("LEASE", "ACQUIRE", 1000, "RESOURCES", name)
    lock.release()
    lease_id, token, left = client.execute_command("LEASE", "ACQUIRE", 60_000, "RESOURCES", name)
    assert lock.locked() and not lock.acquire(blocking=False)
    with pytest.raises(ResponseError, match="not made by SET"):
        client.delete(name)
    assert client.execute_command("LEASE", "RELEASE", lease_id) == 1
    assert lock.acquire(blocking=False)
    lock.release()


def test_locks_survive_kill_9_with_their_exact_time():
    """Goal: an acknowledged lock is on disk: after kill -9 and a restart it has its value, its token and its end."""
    with Leasehold() as server:
        client = redis.Redis(port=server.port)
        long, short, gone = (client.lock(name, timeout=t) for name, t in [("long", 600), ("short", 4), ("gone", 600)])
        began = time.monotonic()
        assert all(lock.acquire(blocking=False) for lock in (long, short, gone))
        taken = time.monotonic()
        assert long.extend(100)
        gone.release()
        before = lease_get(client, "long")["holders"][0]["token"]
        server.kill()
        with pytest.raises(redis.exceptions.ConnectionError):
            redis.Redis(port=server.port, retry=None).ping()
        server.start()
        asked = time.monotonic()
        left = client.pttl("long") / 1000
        answered = time.monotonic()
        # It ends when it was to end: at most 700 s after it was granted, which lies between `began` and `taken`; a
        # millisecond for rounding.
        assert began + 700 - answered - 0.001 <= left <= taken + 700 - asked + 0.001
        assert long.owned() and not gone.locked()
        assert lease_get(client, "long")["holders"][0]["token"] == before
        assert not client.lock("long", timeout=1).acquire(blocking=False)
        # Not early, and not later than a busy machine excuses.
        next_one = client.lock("short", timeout=60, sleep=0.005)
        assert next_one.acquire(blocking_timeout=60)
        assert time.monotonic() >= began + 4
        with pytest.raises(LockNotOwnedError):
            short.release()
        assert lease_get(client, "short")["holders"][0]["token"] > before
        long.release()


def test_a_key_is_asked_for_and_its_role_counts():
    """Goal: redis-py's own ways to authenticate work, and a wrong key or a wrong role is refused in words it knows."""
    with Leasehold(start=False) as server:
        lease = server.create_key("--role", "lease", "--prefix", "jobs/")
        read = server.create_key("--role", "read")
        server.start()
        for protocol in (2, 3):
            for url in (f"redis://:{lease}@localhost:{server.port}", f"redis://default:{lease}@localhost:{server.port}"):
                with redis.from_url(url, protocol=protocol) as client:
                    with client.lock("jobs/nightly", timeout=60) as lock:
                        assert lock.owned() and lock.extend(1)
                    with pytest.raises(ResponseError, match="^FORBIDDEN "):
                        client.lock("others/nightly", timeout=60).acquire()
            with redis.Redis(port=server.port, password=read, protocol=protocol) as client:
                assert client.execute_command("LEASE", "GET", "jobs/nightly") is None
                with pytest.raises(ResponseError, match="^FORBIDDEN "):
                    client.lock("jobs/nightly", timeout=60).acquire()
            # Without a retry: redis-py takes a wrong key for a lost connection, and tries for seconds.
            with redis.Redis(port=server.port, protocol=protocol, retry=None) as client:
                with pytest.raises(AuthenticationError):
                    client.lock("jobs/nightly", timeout=60).acquire()
            with redis.Redis(port=server.port, password=lease[:-1] + "x", protocol=protocol, retry=None) as client:
                with pytest.raises(AuthenticationError):
                    client.ping()
        assert lease not in server.said() and read not in server.said()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate that signs itself."""
    home = tmp_path_factory.mktemp("tls")
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
        " -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout key.pem -out cert.pem".split(),
        cwd=home, check=True, capture_output=True,
    )  # fmt: skip
    return home / "cert.pem", home / "key.pem"


def test_tls(certificate):
    """Goal: rediss:// works with a certificate that is trusted, and not without trust, nor without TLS."""
    cert, key = certificate
    with Leasehold("--tls-cert", str(cert), "--tls-key", str(key), start=False) as server:
        secret = server.create_key("--role", "lease")
        server.start()
        url = f"rediss://:{secret}@localhost:{server.port}"
        for protocol in (2, 3):
            with redis.from_url(url, ssl_ca_certs=str(cert), protocol=protocol) as client:
                with client.lock("nightly", timeout=60) as lock:
                    assert lock.owned()
                    context = ssl.create_default_context(cafile=str(cert))
                    status, body = http(server, "/v1/resources/nightly", secret, context)
                    assert status == 200 and len(body["holders"]) == 1
        with redis.from_url(url, retry=None) as client, pytest.raises(redis.exceptions.ConnectionError):
            client.ping()
        plain = redis.Redis(port=server.port, password=secret, retry=None, socket_timeout=20)
        with plain as client, pytest.raises((redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)):
            client.ping()
