"""The same commands to a real redis-server and to ours: the replies must be the same, byte for byte.

Goal: whatever a lock client can observe through the commands both know is what Redis shows it.

Method: seeded random commands over few keys and values. Keys live long, or for a moment that is waited for: what a
server says about a key that ends just then depends on luck, so a round in which the moment passed too early (the
machine paused) is thrown away on both, and made again. Times left may differ a little; nothing else may.
"""

import hashlib
import random
import time

import pytest

import scripts
from wire import Wire

#: A moment: long enough to send a round to both servers, short enough to wait for.
MOMENT_MS = 250
#: How far apart the times of a round may lie on the two servers.
TOLERANCE_MS = 2 * MOMENT_MS
LONG_MS = [60_000, 90_000, 3_600_000]
ROUNDS = 40
VALUES = [b"ada", b"bob", bytes(range(128, 148))]


def sha(text):
    return hashlib.sha1(text.encode()).hexdigest()


class Source:
    """Makes commands."""

    def __init__(self, seed, prefix):
        self.random = random.Random(seed)
        # Each for itself.
        self.single = [prefix + letter for letter in "abcd"]
        # Taken together, and then extended together: see test_keys_taken_together_have_one_end.
        self.group = [prefix + letter for letter in "efg"]
        self.keys = self.single + self.group
        self.pick = self.random.choice

    def some(self, most):
        """Some keys; in EXISTS and DEL also the same one twice."""
        return [self.pick(self.keys) for _ in range(self.random.randint(1, most))]

    def life(self):
        return MOMENT_MS if self.random.random() < 0.35 else self.pick(LONG_MS)

    def command(self):
        kinds = [self.set, self.script, self.look, self.change, self.about]
        (kind,) = self.random.choices(kinds, [30, 30, 25, 12, 3])
        return kind()

    def set(self):
        life = self.life()
        expiry = ["PX", life]
        if life != MOMENT_MS and self.random.random() < 0.5:
            expiry = ["EX", life // 1000]
        options = self.pick([["NX", *expiry], [*expiry, "NX"], ["nx", expiry[0].lower(), expiry[1]]])
        key = self.pick(self.single + self.group[:1])
        return ["SET", key, self.pick(VALUES), *options]

    def script(self):
        if self.random.random() < 0.5:
            text, kind = self.pick(scripts.ONE_KEY)
            keys = [self.pick(self.keys if kind == "release" else self.single)]
        else:
            text, kind = self.pick(scripts.MANY_KEYS)
            count = self.random.randint(1, 3) if kind == "release" else 3
            keys = self.pick([self.random.sample(self.group, count), [self.pick(self.single)]])
        more = {"release": [], "time": [self.life()], "extend": [self.life(), self.pick(["0", "1"])]}[kind]
        call = self.pick([["EVALSHA", sha(text)], ["EVALSHA", sha(text).upper()], ["EVAL", text]])
        return [*call, len(keys), *keys, self.pick(VALUES), *more]

    def look(self):
        one = self.pick(self.keys)
        return self.pick([["GET", one], ["get", one], ["PTTL", one], ["TTL", one], ["EXISTS", *self.some(5)]])

    def change(self):
        if self.random.random() < 0.5:
            return ["DEL", *self.some(3)]
        return ["PEXPIRE", self.pick(self.single), self.pick([self.life(), 0, -1])]

    def about(self):
        text = self.pick(scripts.ALL)
        return self.pick(
            [["SCRIPT", "LOAD", text], ["SCRIPT", "EXISTS", sha(text), "0" * 40], ["EVALSHA", "0" * 40, 1, "k", "v"]]
            + [["PING"], ["PING", "hello"], ["ECHO", b"\x00\xff"], ["SELECT", 0], ["CLIENT", "SETNAME", "ada"]]
        )


def same(command, ours, theirs):
    name = str(command[0]).upper()
    if name in ("PTTL", "TTL") and ours[0] == theirs[0] == ":" and ours[1] > 0 and theirs[1] > 0:
        unit = 1 if name == "PTTL" else 1000
        return abs(ours[1] - theirs[1]) <= max(1, TOLERANCE_MS / unit)
    return ours == theirs


class Pair:
    """A connection to each server, in the same version of the protocol."""

    def __init__(self, leasehold, real_redis, protocol):
        self.ours, self.theirs = Wire(leasehold.port), Wire(real_redis.port)
        for wire in (self.ours, self.theirs):
            assert wire.ask("HELLO", protocol)[0] in "*%"
            # Redis knows a script after it was loaded, we know these always.
            for text in scripts.ALL:
                assert wire.ask("SCRIPT", "LOAD", text) == ("$", sha(text).encode())

    def round(self, commands, pipelined):
        """Replies of both, and whether the round fitted into a moment."""
        began = time.monotonic()
        if pipelined:
            replies = list(zip(self.ours.pipeline(commands), self.theirs.pipeline(commands), strict=True))
        else:
            replies = [(self.ours.ask(*command), self.theirs.ask(*command)) for command in commands]
        return replies, (time.monotonic() - began) * 1000 < MOMENT_MS * 0.8

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ours.close()
        self.theirs.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_random_commands_are_answered_as_by_redis(leasehold, real_redis, protocol):
    seed = 20_261_115 + protocol
    compared = expired = missed = 0
    shown = set()
    with Pair(leasehold, real_redis, protocol) as pair:
        number = 0
        while number < ROUNDS and missed < 3 * ROUNDS:
            source = Source(seed + number, f"differential/{protocol}/{number}/{missed}/")
            keys = source.keys
            # What lives for a moment is over in the second half, on both.
            halves = [[source.command() for _ in range(20)], [source.command() for _ in range(12)]]
            pipelined = number % 2 == 0
            for half, commands in enumerate(halves):
                if half == 1:
                    before = pair.ours.ask("EXISTS", *keys)[1]
                    time.sleep(MOMENT_MS / 1000 * 1.1)
                    expired += before - pair.ours.ask("EXISTS", *keys)[1]
                replies, fitted = pair.round(commands, pipelined)
                if not fitted:
                    missed += 1
                    break
                for command, (ours, theirs) in zip(commands, replies, strict=True):
                    assert same(command, ours, theirs), (
                        f"seed {seed + number}: {command} is answered {ours} by us and {theirs} by Redis\n"
                        + "\n".join(f"  {c} {o} {t}" for c, (o, t) in zip(commands, replies))
                    )
                    shown.add((str(command[0]).upper(), str(ours)[:40]))
                compared += len(commands)
            else:
                number += 1
            for wire in (pair.ours, pair.theirs):
                wire.ask("DEL", *keys)
    # A comparison of nothing with nothing would pass as well.
    assert number == ROUNDS, f"the machine paused in {missed} rounds"
    assert compared >= 1280 and expired > ROUNDS / 4, (compared, expired)
    for seen in [("SET", "('+', 'OK')"), ("SET", "('nil', None)"), ("EVALSHA", "(':', 1)"), ("EVALSHA", "(':', 0)"),
                 ("EVALSHA", "(':', 3)"), ("DEL", "(':', 2)"), ("PTTL", "(':', -2)"), ("PEXPIRE", "(':', 1)"),
                 ("GET", "('nil', None)")]:  # fmt: skip
        assert seen in shown, f"no command was answered {seen}"


#: Commands whose refusal clients match on: the whole text is as in Redis.
EXACT_ERRORS = [
    ["EVALSHA", "f" * 40, 1, "k", "v"],
    ["EVALSHA", "no sha", 1, "k", "v"],
    ["HELLO", 4],
]


def test_errors_that_clients_match_on(leasehold, real_redis):
    """Goal: NOSCRIPT and NOPROTO come with the words that clients look for."""
    with Wire(leasehold.port) as ours, Wire(real_redis.port) as theirs:
        for command in EXACT_ERRORS:
            assert ours.ask(*command) == theirs.ask(*command), command
        assert ours.ask("EVALSHA", "f" * 40, 0) == ("-", "NOSCRIPT No matching script. Please use EVAL.")


#: What Redis does and we refuse, on purpose: the command, how Redis answers, how our sentence begins. `{k}` is a key
#: that was set, `{n}` one that was not, `{l}` a lease taken by LEASE ACQUIRE (in Redis: a key that was set).
DIFFERENCES = [
    ("SET {n} v", "+", "INVALID SET without NX would overwrite another's lock"),
    ("SET {n} v PX 1000", "+", "INVALID SET without NX would overwrite another's lock"),
    ("SET {k} v XX PX 1000", "+", "INVALID SET is supported as SET key value NX PX ms"),
    ("SET {k} v KEEPTTL", "+", "INVALID SET is supported as SET key value NX PX ms"),
    ("SET {n} v NX", "+", "INVALID SET NX without an expiry would hold the lock for ever"),
    ("SET {n} v NX PXAT 99999999999999", "+", "INVALID SET is supported as SET key value NX PX ms"),
    ("SET {n} v NX PX 86400001", "+", "INVALID ttl"),
    ("DEL {l}", ":", "INVALID"),
    ("PEXPIRE {l} 5000", ":", "INVALID"),
    ("PEXPIRE {k} 5000 GT", ":", "INVALID the command is written PEXPIRE key ms"),
    ("SELECT 1", "+", "INVALID there is one database"),
    ("INCR {n}", ":", "INVALID INCR is not supported"),
    ("KEYS *", "*", "INVALID KEYS is not supported"),
    ("FLUSHALL", "+", "INVALID FLUSHALL is not supported"),
    ("HSET {n} a b", ":", "INVALID HSET is not supported"),
    ("PUBLISH c m", ":", "INVALID PUBLISH is not supported"),
    ("SCRIPT FLUSH", "+", "INVALID SCRIPT FLUSH is not supported"),
    ("CONFIG GET save", "*", "INVALID CONFIG is not supported"),
    ("MULTI", "+", "INVALID MULTI is not supported"),
]


@pytest.mark.parametrize("command,redis_answers,we_say", DIFFERENCES, ids=[row[0] for row in DIFFERENCES])
def test_documented_differences(leasehold, real_redis, name, command, redis_answers, we_say):
    """Goal: every difference is a refusal in a sentence and changes nothing; none is a quiet deviation."""
    names = {"k": f"{name}/k", "n": f"{name}/n", "l": f"{name}/l"}
    words = command.format(**names).split()
    with Wire(leasehold.port) as ours, Wire(real_redis.port) as theirs:
        for wire in (ours, theirs):
            assert wire.ask("SET", names["k"], "ada", "NX", "PX", 60_000) == ("+", "OK")
        assert theirs.ask("SET", names["l"], "ada", "NX", "PX", 60_000) == ("+", "OK")
        assert ours.ask("LEASE", "ACQUIRE", 60_000, "RESOURCES", names["l"])[0] == "*"
        # FLUSHALL and the like come last, and on Redis alone they do something.
        assert theirs.ask(*words)[0] == redis_answers
        kind, sentence = ours.ask(*words)
        assert kind == "-" and sentence.startswith(we_say), sentence
    with Wire(leasehold.port) as ours:
        assert ours.ask("GET", names["k"]) == ("$", b"ada")
        assert ours.ask("GET", names["n"]) == ("nil", None)
        assert 5_000 < ours.ask("PTTL", names["k"])[1] <= 60_000
        assert 5_000 < ours.ask("PTTL", names["l"])[1] <= 60_000


#: What both refuse. Redis says ERR, we say INVALID and how it is written.
BOTH_REFUSE = [
    "SET {n} v NX PX 0", "SET {n} v NX PX -1", "SET {n} v NX PX abc", "SET {n} v NX PX", "SET {n}", "SET {n} v NX PX 1 EX 1",
    "GET", "GET a b", "DEL", "EXISTS", "PTTL", "TTL a b", "PEXPIRE {k}", "PEXPIRE {k} x", "EVAL", "EVALSHA", "ECHO",
    "SELECT x", "NOSUCHCOMMAND", "CLIENT NOSUCH", "SCRIPT NOSUCH", "CLIENT SETNAME", "SCRIPT LOAD", "SCRIPT EXISTS",
]  # fmt: skip


@pytest.mark.parametrize("command", BOTH_REFUSE)
def test_what_both_refuse(leasehold, real_redis, name, command):
    """Goal: what is an error in Redis is an error here, and the connection goes on."""
    words = command.format(k=f"{name}/k", n=f"{name}/n").split()
    with Wire(leasehold.port) as ours, Wire(real_redis.port) as theirs:
        for wire in (ours, theirs):
            assert wire.ask("SET", f"{name}/k", "ada", "NX", "PX", 60_000) == ("+", "OK")
        assert theirs.ask(*words)[0] == "-"
        kind, sentence = ours.ask(*words)
        assert kind == "-" and len(sentence) > 20, (kind, sentence)
        assert ours.ask("GET", f"{name}/n") == ("nil", None)
        assert ours.ask("PING") == ("+", "PONG")


def test_keys_taken_together_have_one_end(leasehold, name):
    """Goal: keys of one redlock are one lease: its owner pushes all of them by one, nobody shortens one alone, and who
    does not show the value pushes none that was not named.

    In Redis they drift apart. No client does that: redlock extends what it took, all of it.
    """
    one, two = f"{name}/one", f"{name}/two"
    with Wire(leasehold.port) as ours:
        kind, sentence = ours.ask("EVAL", scripts.REDLOCK_ACQUIRE, 2, one, one, "ada", 60_000)
        assert kind == "-" and "comes twice" in sentence
        assert ours.ask("EVAL", scripts.REDLOCK_ACQUIRE, 2, one, two, "ada", 60_000) == (":", 2)
        for ttl in (1_000, 90_000):
            kind, sentence = ours.ask("PEXPIRE", one, ttl)
            assert kind == "-" and "name all of them or none" in sentence
            assert 30_000 < ours.ask("PTTL", two)[1] <= 60_000
        assert ours.ask("EVAL", scripts.REDLOCK_EXTEND, 1, one, "ada", 90_000) == (":", 1)
        assert ours.ask("PTTL", two)[1] > 60_000
        kind, sentence = ours.ask("EVAL", scripts.REDLOCK_EXTEND, 1, one, "ada", 1_000)
        assert kind == "-" and "name all of them or none" in sentence
        assert ours.ask("EVAL", scripts.REDLOCK_EXTEND, 2, one, two, "ada", 50_000) == (":", 2)
        assert 30_000 < ours.ask("PTTL", two)[1] <= 50_000
        # Deleting one frees that one only, as in Redis; then the rest can be shortened.
        assert ours.ask("DEL", one) == (":", 1)
        assert ours.ask("EXISTS", one, two) == (":", 1)
        assert ours.ask("PEXPIRE", two, 20_000) == (":", 1)


def test_extending_what_is_partly_anothers_is_a_no(leasehold, real_redis, name):
    """Goal: a redlock that lost one of its keys learns 0, as from Redis, also where its time would be shortened."""
    one, two, lost = (f"{name}/{word}" for word in ("one", "two", "lost"))
    for server in (leasehold, real_redis):
        with Wire(server.port) as wire:
            assert wire.ask("EVAL", scripts.REDLOCK_ACQUIRE, 3, one, two, lost, "ada", 60_000) == (":", 3)
            assert wire.ask("DEL", lost) == (":", 1)
            assert wire.ask("SET", lost, "bob", "NX", "PX", 60_000) == ("+", "OK")
            for keys in ([one, lost], [lost, one], [one, two, lost]):
                for ttl in (1_000, 90_000):
                    assert wire.ask("EVAL", scripts.REDLOCK_EXTEND, len(keys), *keys, "ada", ttl) == (":", 0)
            assert 30_000 < wire.ask("PTTL", one)[1] <= 60_000
            assert wire.ask("EVAL", scripts.REDLOCK_RELEASE, 3, one, two, lost, "ada") == (":", 2)
            assert wire.ask("GET", lost) == ("$", b"bob")


def test_a_script_cannot_touch_a_lease_that_has_no_value(leasehold, name):
    """Goal: what GET shows of a lease made by LEASE ACQUIRE is no value that opens it."""
    with Wire(leasehold.port) as ours:
        kind, (lease_id, _, _) = ours.ask("LEASE", "ACQUIRE", 60_000, "RESOURCES", name)
        kind, shown = ours.ask("GET", name)
        assert kind == "$" and shown != lease_id[1]
        for value in (shown, lease_id[1], b""):
            for text, arguments in [(scripts.REDIS_PY_RELEASE, []), (scripts.REDIS_PY_EXTEND, [1000, "1"]),
                                    (scripts.REDLOCK_RELEASE, []), (scripts.REDLOCK_EXTEND, [1000])]:  # fmt: skip
                assert ours.ask("EVAL", text, 1, name, value, *arguments) == (":", 0)
        assert ours.ask("SET", name, "bob", "NX", "PX", 1000) == ("nil", None)
        assert ours.ask("PTTL", name)[1] > 30_000
        assert ours.ask("LEASE", "RELEASE", lease_id[1]) == (":", 1)


def test_what_was_in_a_refused_transaction_is_not_done(leasehold, real_redis, name):
    """Goal: MULTI is refused with all that is in it, and EXEC is answered as Redis answers after an error."""
    with Wire(leasehold.port) as ours, Wire(real_redis.port) as theirs:
        set_key = ["SET", name, "ada", "NX", "PX", 60_000]
        replies = ours.pipeline([["MULTI"], set_key, ["LEASE", "LIST"], ["NOSUCH"], ["EXEC"], ["EXISTS", name]])
        assert [kind for kind, _ in replies] == ["-", "-", "-", "-", "-", ":"]
        aborted = theirs.pipeline([["MULTI"], ["NOSUCH"], ["EXEC"]])[-1]
        assert replies[4] == aborted and replies[5] == (":", 0)
        assert ours.pipeline([["MULTI"], set_key, ["DISCARD"], set_key])[2:] == [("+", "OK"), ("+", "OK")]
        for command in ("EXEC", "DISCARD"):
            assert ours.ask(command) == theirs.ask(command)


UNKNOWN_SCRIPTS = [
    "return 1",
    'return redis.call("get", KEYS[1])',
    scripts.REDIS_PY_RELEASE + " ",
    "",
]


@pytest.mark.parametrize("text", UNKNOWN_SCRIPTS)
def test_unknown_scripts_are_refused_in_a_sentence(leasehold, name, text):
    """Goal: no script is guessed at: one space more than a known one, and it is refused, by EVAL and by LOAD."""
    with Wire(leasehold.port) as ours:
        assert ours.ask("SET", name, "ada", "NX", "PX", 60_000) == ("+", "OK")
        for command in (["EVAL", text, 1, name, "ada"], ["SCRIPT", "LOAD", text]):
            kind, sentence = ours.ask(*command)
            assert kind == "-" and sentence.startswith("INVALID this server runs no scripts"), sentence
        assert ours.ask("EVALSHA", sha(text), 1, name, "ada") == ("-", "NOSCRIPT No matching script. Please use EVAL.")
        assert ours.ask("SCRIPT", "EXISTS", sha(text)) == ("*", [(":", 0)])
        assert ours.ask("GET", name) == ("$", b"ada")
