"""Real servers for the tests: `leasehold serve` and, as the reference, `redis-server`.

Each has a directory of its own and a free port. What a test starts is ended when the test ends, also when it
failed. Nothing here imitates a server.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

#: How long anything may take on a busy machine before a test gives up on it.
PATIENCE = 60


def wait_until(what, check, patience=PATIENCE):
    """Asks again until the check says something, and gives up loudly."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if found := check():
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited {patience} s in vain: {what}")


def free_port():
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def binary():
    """The server under test."""
    path = os.environ.get("LEASEHOLD_BIN")
    assert path and os.access(path, os.X_OK), "LEASEHOLD_BIN must name the binary to test: run scripts/test-clients"
    return path


class Process:
    """A process that ends with its test."""

    def __init__(self, prefix):
        self.home = Path(tempfile.mkdtemp(prefix=prefix))
        self.child = None

    def spawn(self, command):
        self.log = self.home / "log"
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.home)

    def said(self):
        return self.log.read_text(errors="replace")

    def signal(self, number):
        self.child.send_signal(number)
        self.child.wait(PATIENCE)

    def kill(self):
        """As a machine that loses its process: no goodbye."""
        self.signal(signal.SIGKILL)

    def close(self):
        if self.child and self.child.poll() is None:
            self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Leasehold(Process):
    """`leasehold serve`. It can be started again on the same directory and ports."""

    def __init__(self, *more, start=True):
        super().__init__("leasehold-clients-")
        self.more = list(more)
        self.port = self.http = 0
        if start:
            self.start()

    def start(self):
        """Starts it, or starts it again. What does not come up is taken away."""
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self):
        self.spawn(
            [binary(), "serve", "--data", str(self.home / "data"), "--http", f"127.0.0.1:{self.http}"]
            + ["--resp", f"127.0.0.1:{self.port}", *self.more]
        )

        def listens():
            assert self.child.poll() is None, f"the server ended: {self.said()}"
            # The last line of the banner is the example with `acquire`.
            said = self.said()
            return "acquire seat-16" in said and said

        said = wait_until("the server says where it listens", listens)
        self.port = int(re.search(r"^  resp  127\.0\.0\.1:(\d+)", said, re.M).group(1))
        self.http = int(re.search(r"^  http  https?://127\.0\.0\.1:(\d+)", said, re.M).group(1))

    def create_key(self, *arguments):
        """A new API key. The server need not run."""
        made = subprocess.run(
            [binary(), "key", "create", "--data", str(self.home / "data"), *arguments],
            stdout=subprocess.PIPE, timeout=PATIENCE, check=True, text=True,
        )  # fmt: skip
        (key,) = made.stdout.split()
        return key


class Redis(Process):
    """The reference: a real `redis-server` that keeps everything in memory."""

    def __init__(self):
        super().__init__("redis-clients-")
        self.port = free_port()
        self.spawn(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
            + ["--dir", str(self.home)]
        )

        def listens():
            assert self.child.poll() is None, f"redis-server ended: {self.said()}"
            return "eady to accept connections" in self.said()

        try:
            wait_until("redis-server is ready", listens)
        except BaseException:
            self.close()
            raise
