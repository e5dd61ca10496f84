"""A PostgreSQL server of the tests' own, with a fenced table in a database for each client."""

import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

PATIENCE = 60
NEW = "42:bbbbbbbbbbbbbbbb\tseat/14"
OLD = "41:aaaaaaaaaaaaaaaa\tseat/14"


def programs():
    """Where the programs of the newest PostgreSQL are."""
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    assert found, "PostgreSQL is not installed: apt-get install postgresql"
    return found[-1].parent


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Postgres:
    def __init__(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="leasehold-fence-clients-"))
        self.port = free_port()
        # PostgreSQL refuses root.
        self.as_owner = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self):
        if self.as_owner:
            shutil.chown(self.home, "postgres")
        data = self.home / "data"
        self.run([programs() / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"])
        options = f"-p {self.port} -k {self.home} -c listen_addresses=127.0.0.1 -c fsync=off"
        self.run([programs() / "pg_ctl", "-D", data, "-w", "-t", str(PATIENCE), "-l", self.home / "log", "-o", options, "start"])

    def run(self, command):
        done = subprocess.run([*self.as_owner, *map(str, command)], capture_output=True, text=True, cwd="/", timeout=PATIENCE * 2)
        assert done.returncode == 0, done.stdout + done.stderr

    def close(self):
        if (self.home / "data").exists():
            command = [programs() / "pg_ctl", "-D", self.home / "data", "-m", "immediate", "-w", "stop"]
            subprocess.run([*self.as_owner, *map(str, command)], capture_output=True, cwd="/", timeout=PATIENCE)
        shutil.rmtree(self.home, ignore_errors=True)

    def url(self, database):
        return f"postgres://postgres@127.0.0.1:{self.port}/{database}"

    def query(self, database, sql):
        command = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", self.url(database), "-c", sql]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def fenced_database(self, name):
        """A database with a fenced table of two free seats."""
        self.query("postgres", f'CREATE DATABASE "{name}"')
        self.query(name, "CREATE TABLE seats (seat_id int PRIMARY KEY, owner text NOT NULL)")
        self.query(name, "INSERT INTO seats VALUES (14, 'free'), (15, 'free')")
        install = [os.environ["LEASEHOLD_BIN"], "fence", "install", "--url", self.url(name)]
        install += ["--table", "seats", "--key", "seat_id", "--resource", "seat/{}"]
        done = subprocess.run(install, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
        return self.url(name)
