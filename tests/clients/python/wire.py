"""RESP in bytes, so that tests can compare replies exactly: redis-py would translate them first.

A reply becomes a pair: the byte that names its type, and its content. Errors are values here, not exceptions.
"""

import socket

from servers import PATIENCE


class Wire:
    """One connection."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.file = self.socket.makefile("rb")

    def send(self, *commands):
        """Commands, all in one write."""
        out = []
        for command in commands:
            words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
            out.append(b"*%d\r\n" % len(words))
            out.extend(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        self.socket.sendall(b"".join(out))

    def read(self):
        """The next reply."""
        line = self.file.readline()
        assert line.endswith(b"\r\n"), f"the connection was cut off: {line!r}"
        kind, text = line[:1].decode(), line[1:-2]
        if kind in "+-":
            return kind, text.decode()
        if kind == ":":
            return kind, int(text)
        if kind == "_":
            return "nil", None
        length = int(text)
        if length < 0:
            return "nil", None
        if kind in "$=":
            return kind, self.file.read(length + 2)[:-2]
        if kind in "*>":
            return kind, [self.read() for _ in range(length)]
        if kind == "%":
            return kind, [(self.read(), self.read()) for _ in range(length)]
        raise AssertionError(f"an unknown type: {line!r}")

    def ask(self, *command):
        """One command and its reply."""
        self.send(command)
        return self.read()

    def pipeline(self, commands):
        """All commands at once, then all replies."""
        self.send(*commands)
        return [self.read() for _ in commands]

    def close(self):
        self.file.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
