"""redis-cli and redis-benchmark, as the distribution has them."""

import hashlib
import os
import re
import signal
import subprocess
import time

import pytest

from servers import PATIENCE, Leasehold, wait_until
from wire import Wire


#: The script for releasing a lock in the documentation of Redis.
RELEASE = """if redis.call("get",KEYS[1]) == ARGV[1] then
    return redis.call("del",KEYS[1])
else
    return 0
end"""
SHA = hashlib.sha1(RELEASE.encode()).hexdigest()


class Cli:
    """redis-cli at a server, in either version of the protocol."""

    def __init__(self, server, *options, key=None):
        self.command = ["redis-cli", "-p", str(server.port), "--no-raw", *options]
        self.environment = {**os.environ, **({"REDISCLI_AUTH": key} if key else {})}

    def __call__(self, *words):
        words = [str(word) for word in words]
        done = subprocess.run(
            [*self.command, *words], env=self.environment, timeout=PATIENCE, capture_output=True, text=True
        )
        return (done.stdout + done.stderr).strip()

    def start(self, *words, **more):
        return subprocess.Popen(
            [*self.command, *[str(word) for word in words]],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more,
        )  # fmt: skip


@pytest.fixture(params=[["-2"], ["-3"]], ids=["resp2", "resp3"])
def cli(leasehold, request):
    return Cli(leasehold, *request.param)


def test_the_redis_commands_of_the_contract(cli, name):
    """Goal: every Redis command of the contract, typed as people type it."""
    assert cli("PING") == "PONG"
    assert cli("ECHO", "hello") == '"hello"'
    assert cli("SELECT", 0) == "OK"
    assert cli("SET", name, "ada", "NX", "PX", 60_000) == "OK"
    assert cli("SET", name, "bob", "NX", "EX", 60) == "(nil)"
    assert cli("GET", name) == '"ada"'
    assert cli("EXISTS", name, "another") == "(integer) 1"
    assert re.fullmatch(r"\(integer\) 5\d", cli("TTL", name)) or cli("TTL", name) == "(integer) 60"
    assert cli("PEXPIRE", name, 90_000) == "(integer) 1"
    assert int(cli("PTTL", name).split()[1]) > 60_000
    assert cli("SCRIPT", "LOAD", RELEASE) == f'"{SHA}"'
    assert cli("SCRIPT", "EXISTS", SHA, "0" * 40) == "1) (integer) 1\n2) (integer) 0"
    assert cli("EVAL", RELEASE, 1, name, "bob") == "(integer) 0"
    assert cli("EVALSHA", SHA, 1, name, "bob") == "(integer) 0"
    assert cli("EVALSHA", SHA, 1, name, "ada") == "(integer) 1"
    assert cli("DEL", name) == "(integer) 0"
    assert cli("CLIENT", "SETNAME", "ada") == "OK"
    assert re.fullmatch(r"\(integer\) \d+", cli("CLIENT", "ID"))
    assert "redis_version:" in cli("INFO")
    assert cli("QUIT") == "OK"
    assert "leasehold" in cli("HELLO", 3)
    assert cli("NOSUCH").startswith("(error) INVALID NOSUCH is not supported: this server knows LEASE")


def test_the_lease_commands_of_the_contract(cli, name):
    """Goal: acquire, renew, get, list, revoke and release, and the words of refusals."""
    acquired = cli("LEASE", "ACQUIRE", 60_000, "HOLDER", "ada", "RESOURCES", f"{name}/a", f"{name}/b")
    lease_id, token, left = re.fullmatch(
        r'1\) "(\S+)"\n2\) \(integer\) (\d+)\n3\) \(integer\) (\d+)', acquired
    ).groups()  # fmt: skip
    assert int(token) > 0 and 30_000 < int(left) <= 60_000
    held = cli("LEASE", "ACQUIRE", 60_000, "RESOURCES", f"{name}/b")
    assert re.match(r'\(error\) HELD holder="ada" remaining_ms=\d+ queue=0', held), held
    assert re.fullmatch(r"\(integer\) 9\d{4}|\(integer\) 8\d{4}", cli("LEASE", "RENEW", lease_id, 90_000))
    shown = cli("LEASE", "GET", f"{name}/a")
    assert '"exclusive"' in shown and '"ada"' in shown and f"(integer) {token}" in shown and lease_id not in shown
    listed = cli("LEASE", "LIST", "PREFIX", f"{name}/", "LIMIT", 10)
    assert f'"{name}/a"' in listed and f'"{name}/b"' in listed and lease_id not in listed
    assert cli("LEASE", "RELEASE", lease_id) == "(integer) 1"
    assert cli("LEASE", "RELEASE", lease_id) == "(integer) 0"
    assert cli("LEASE", "GET", f"{name}/a") == "(nil)"
    assert cli("LEASE", "RELEASE", f"{lease_id[:-4]}ffff").startswith("(error) NOTHELD")
    shared = [cli("LEASE", "ACQUIRE", 60_000, "SHARED", "RESOURCES", name).split('"')[1] for _ in range(2)]
    assert cli("LEASE", "ACQUIRE", 60_000, "RESOURCES", name).startswith("(error) HELD")
    assert cli("LEASE", "REVOKE", name, "REASON", "maintenance") == "(integer) 2"
    assert cli("LEASE", "RENEW", shared[0]).startswith("(error) STALE")
    for _ in range(2):
        assert cli("LEASE", "ACQUIRE", 60_000, "PERMITS", 1, "CAPACITY", 2, "RESOURCES", name).startswith("1)")
    assert cli("LEASE", "ACQUIRE", 60_000, "PERMITS", 1, "CAPACITY", 2, "RESOURCES", name).startswith("(error) HELD")
    assert cli("LEASE", "ACQUIRE", 0, "RESOURCES", name).startswith("(error) INVALID")


def test_a_retried_request_is_the_same_lease(cli, name):
    """Goal: REQUEST makes an acquire safe to send again."""
    acquire = ["LEASE", "ACQUIRE", 60_000, "REQUEST", f"order-{name}", "RESOURCES", name]
    first, again = cli(*acquire).splitlines(), cli(*acquire).splitlines()
    assert first[:2] == again[:2]
    other = ["LEASE", "ACQUIRE", 50_000, "REQUEST", f"order-{name}", "RESOURCES", name]
    assert cli(*other).startswith("(error) MISMATCH")


def test_wait_blocks_until_the_lease_is_free(leasehold, cli, name):
    """Goal: WAIT stands in line and is granted on release, in order of arrival; when it runs out it says HELD."""
    lease_id = cli("LEASE", "ACQUIRE", 60_000, "RESOURCES", name).split('"')[1]
    began = time.monotonic()
    assert cli("LEASE", "ACQUIRE", 60_000, "WAIT", 200, "RESOURCES", name).startswith("(error) HELD")
    assert time.monotonic() - began >= 0.2
    waiters = []
    with Wire(leasehold.port) as wire:
        assert wire.ask("HELLO", 3)[0] == "%"
        for number in range(2):
            waiters.append(
                cli.start("LEASE", "ACQUIRE", 60_000, "WAIT", 60_000, "HOLDER", f"waiter-{number}", "RESOURCES", name)
            )

            def queued(number=number):
                seen = {key[1]: value for key, value in wire.ask("LEASE", "GET", name)[1]}
                return seen[b"queue_len"][1] == number + 1

            wait_until("the waiter stands in line", queued)
    assert all(waiter.poll() is None for waiter in waiters)
    for waiter in waiters:
        assert cli("LEASE", "RELEASE", lease_id) == "(integer) 1"
        out, _ = waiter.communicate(timeout=PATIENCE)
        lease_id = re.match(r'1\) "(\S+)"', out).group(1)
    assert cli("LEASE", "RELEASE", lease_id) == "(integer) 1"


def test_watch_prints_what_happens(leasehold, cli, name, tmp_path):
    """Goal: `redis-cli LEASE WATCH` shows grants, releases, lapses and revokes of its prefix as they happen."""
    out = tmp_path / "out"
    script = tmp_path / "in"
    # redis-cli ends with its input; a pipe that stays open keeps it listening.
    os.mkfifo(script)
    with out.open("wb") as sink:
        watcher = subprocess.Popen(
            [*cli.command, "--show-pushes", "yes"], stdin=os.open(script, os.O_RDWR), stdout=sink, stderr=sink, env=cli.environment
        )
    try:
        with script.open("w") as commands:
            commands.write(f"LEASE WATCH PREFIX {name}/\n")
            commands.flush()
            wait_until("the watch is answered", lambda: "OK" in out.read_text())
            lease_id = cli("LEASE", "ACQUIRE", 60_000, "HOLDER", "ada", "RESOURCES", f"{name}/x").split('"')[1]
            cli("LEASE", "RELEASE", lease_id)
            cli("SET", f"{name}/y", "bob", "NX", "PX", 10)
            cli("SET", f"another-{name}", "bob", "NX", "PX", 60_000)
            cli("LEASE", "ACQUIRE", 60_000, "RESOURCES", f"{name}/z")
            cli("LEASE", "REVOKE", f"{name}/z", "REASON", "maintenance")

            def pushed():
                # redis-cli shows what was pushed when it reads the answer to the next command.
                commands.write("PING\n")
                commands.flush()
                text = out.read_text()
                kinds = ("granted", "released", "lapsed", "revoked", "maintenance")
                return all(kind in text for kind in kinds) and text

            text = wait_until("everything is shown", pushed)
        assert text.index("granted") < text.index("released") < text.index("revoked")
        assert f"{name}/x" in text and f"another-{name}" not in text and lease_id not in text
    finally:
        watcher.send_signal(signal.SIGKILL)
        watcher.wait()


def test_a_key_in_the_environment():
    """Goal: REDISCLI_AUTH, as the server's banner says."""
    with Leasehold(start=False) as server:
        key = server.create_key("--role", "lease")
        server.start()
        for version in ("-2", "-3"):
            assert Cli(server, version, key=key)("SET", f"seat{version}", "ada", "NX", "PX", 30_000) == "OK"
            assert "NOAUTH Authentication required" in Cli(server, version)("SET", "seat", "ada", "NX", "PX", 30_000)


@pytest.mark.parametrize("options", [["-c", "50"], ["-c", "50", "-P", "16"], ["-c", "1"], ["-3", "-c", "8", "-P", "4"]])
def test_redis_benchmark_runs_without_errors(leasehold, options):
    """Goal: redis-benchmark, plain and with pipelines, gets the answers it expects and no error."""
    done = subprocess.run(
        ["redis-benchmark", "-p", str(leasehold.port), "-n", "2000", "-r", "100000000", "--csv", *options]
        + ["SET", "bench/__rand_int__", "ada", "NX", "PX", "30000"],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "rror" not in said, said
    assert re.search(r'"SET bench/__rand_int__ ada NX PX 30000","[\d.]+"', said), said


def test_redis_benchmark_sees_errors(leasehold):
    """Goal: the test above can fail: a command that is refused is reported, and ends the run."""
    done = subprocess.run(
        ["redis-benchmark", "-p", str(leasehold.port), "-n", "100", "-e", "SET", "bench/x", "ada"],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert "INVALID SET without NX" in done.stdout + done.stderr
