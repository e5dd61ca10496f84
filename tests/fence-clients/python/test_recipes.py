"""Every recipe of the guide, against a real fenced table.

Each client does the same four things on one connection, or on a pool of one, and says what came of each:
the newest token writes, a stale one writes, nobody writes without a token, the newest token writes again.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import psycopg
import pytest

from database import NEW, OLD, PATIENCE

HERE = pathlib.Path(__file__).parents[1]
PLAIN = "UPDATE seats SET owner = 'nobody' WHERE seat_id = 14"
STALE_DETAIL = {"resource": "seat/14", "presented": "41", "highest": "42"}
NONE_DETAIL = {"resource": "seat/14", "presented": None, "highest": None}


def judge(postgres, name, answers):
    """The answers: None for admitted, else the code and the detail as the client read them."""
    read = [answer and (answer[0], json.loads(answer[1])) for answer in answers]
    assert read == [None, ("LH001", STALE_DETAIL), ("LH002", NONE_DETAIL), None]
    assert postgres.query(name, "SELECT owner FROM seats WHERE seat_id = 14") == "bob again"


def play(sell, plain, why, refused):
    """The four things, for a client in this process."""
    answers = []
    for step in [lambda: sell(NEW, "bob"), lambda: sell(OLD, "ada"), plain, lambda: sell(NEW, "bob again")]:
        try:
            step()
            answers.append(None)
        except refused as error:
            answers.append(why(error))
    return answers


def run_program(command, url, cwd=None, **more):
    """The four things, by a program of its own: a line of JSON for each."""
    env = {**os.environ, "DATABASE": url, "NEW": NEW, "OLD": OLD, **more}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=PATIENCE, cwd=cwd, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("[", "null"))]


def test_psql(postgres, database, recipes):
    name, _ = database
    where = {"PGHOST": "127.0.0.1", "PGPORT": str(postgres.port), "PGUSER": "postgres", "PGDATABASE": name}
    answers = []
    for shown, owner in [(NEW, "bob"), (OLD, "ada"), ("", "nobody"), (NEW, "bob again")]:
        env = {**os.environ, **where, "SHOWN": shown, "OWNER": owner, "SEAT": "14"}
        done = subprocess.run(["sh", "-c", recipes["psql"]], capture_output=True, text=True, timeout=PATIENCE, env=env)
        if done.returncode == 0:
            answers.append(None)
            continue
        code = done.stderr.split("ERROR:  ")[1].split(":")[0]
        answers.append((code, done.stderr.split("DETAIL:  ")[1].splitlines()[0]))
    judge(postgres, name, answers)


def test_psycopg(postgres, database, recipes):
    name, url = database
    recipe = {}
    exec(recipes["psycopg"], recipe)
    with psycopg.connect(url, autocommit=True) as connection:
        sell = lambda shown, owner: recipe["sell"](connection, shown, 14, owner)
        answers = play(sell, lambda: connection.execute(PLAIN), recipe["why"], psycopg.DatabaseError)
    judge(postgres, name, answers)


def test_sqlalchemy(postgres, database, recipes):
    name, url = database
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.orm import Session

    recipe = {}
    exec(recipes["sqlalchemy"], recipe)
    engine = create_engine(url.replace("postgres://", "postgresql+psycopg://"), pool_size=1, max_overflow=0)

    def plain():
        with Session(engine) as session, session.begin():
            session.execute(text(PLAIN))

    answers = play(lambda shown, owner: recipe["sell"](engine, shown, 14, owner), plain, recipe["why"], DBAPIError)
    # A session that goes on after a commit shows its token again.
    with Session(engine, info={"leasehold_token": NEW}) as session:
        for _ in range(2):
            session.execute(text("UPDATE seats SET owner = 'bob again' WHERE seat_id = 14"))
            session.commit()
    engine.dispose()
    judge(postgres, name, answers)


DJANGO = """
import json, os, sys
from urllib.parse import urlsplit
from django.conf import settings
at = urlsplit(os.environ["DATABASE"])
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": at.path[1:],
                   "HOST": at.hostname, "PORT": at.port, "USER": "postgres"}})
import django
django.setup()
from django.db import DatabaseError, models

class Seat(models.Model):
    seat_id = models.IntegerField(primary_key=True)
    owner = models.TextField()
    class Meta:
        app_label, db_table = "tests", "seats"

exec(open(sys.argv[1]).read())
new, old = os.environ["NEW"], os.environ["OLD"]
plain = lambda: Seat.objects.filter(seat_id=14).update(owner="nobody")
for step in [lambda: sell(new, 14, "bob"), lambda: sell(old, 14, "ada"), plain, lambda: sell(new, 14, "bob again")]:
    try:
        step()
        print("null")
    except DatabaseError as error:
        print(json.dumps(why(error)))
"""


def test_django(postgres, database, recipes, tmp_path):
    name, url = database
    (tmp_path / "recipe.py").write_text(recipes["django"])
    judge(postgres, name, run_program([sys.executable, "-c", DJANGO, tmp_path / "recipe.py"], url))


def test_node_postgres(postgres, database, recipes):
    name, url = database
    # Node looks for packages beside the file that wants them.
    work = pathlib.Path(os.environ["FENCE_NODE"])
    (work / "recipe.mjs").write_text(recipes["node-postgres"])
    shutil.copy(HERE / "node/check.mjs", work)
    judge(postgres, name, run_program(["node", "check.mjs"], url, cwd=work))


@pytest.mark.parametrize("client", ["sqlx", "tokio-postgres"])
def test_rust(postgres, database, client):
    # Built with the recipes of the guide by scripts/test-clients.
    name, url = database
    judge(postgres, name, run_program([pathlib.Path(os.environ["FENCE_RUST"]) / f"check-{client}"], url))


def test_jdbc(postgres, database, recipes, tmp_path):
    name, url = database
    driver = os.environ.get("FENCE_JDBC")
    if not driver:
        pytest.skip("no JDBC: apt-get install default-jdk-headless libpostgresql-jdbc-java")
    text = (HERE / "java/Check.java").read_text()
    assert "/* recipe */" in text
    (tmp_path / "Check.java").write_text(text.replace("/* recipe */", recipes["jdbc"]))
    address = url.replace("postgres://postgres@", "jdbc:postgresql://") + "?user=postgres"
    judge(postgres, name, run_program(["java", "-cp", driver, tmp_path / "Check.java"], url, JDBC=address))


def test_rails(postgres, database, recipes, tmp_path):
    name, url = database
    if os.environ.get("FENCE_RAILS") != "1":
        pytest.skip("no Active Record: apt-get install ruby-activerecord ruby-pg")
    (tmp_path / "recipe.rb").write_text(recipes["rails"])
    judge(postgres, name, run_program(["ruby", HERE / "ruby/check.rb", tmp_path / "recipe.rb"], url))


def test_autocommit(postgres, database, recipes):
    name, url = database
    statement = recipes["autocommit"].replace("$1", "%(owner)s").replace("$2", "%(shown)s").replace("$3", "14")
    with psycopg.connect(url, autocommit=True) as connection:
        sell = lambda shown, owner: connection.execute(statement, {"owner": owner, "shown": shown})
        why = lambda error: (error.sqlstate, error.diag.message_detail)
        answers = play(sell, lambda: connection.execute(PLAIN), why, psycopg.DatabaseError)
    judge(postgres, name, answers)


def test_scope_and_session(postgres, database):
    """What the guide warns of: a token for another seat is refused; a session-wide SET stays."""
    name, url = database
    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(psycopg.DatabaseError) as refused, connection.transaction():
            connection.execute("SELECT set_config('leasehold.token', %s, true)", ["42\tseat/15"])
            connection.execute(PLAIN)
        assert refused.value.sqlstate == "LH006"
        connection.execute("SELECT set_config('leasehold.token', '42', false)")
        connection.execute(PLAIN)
        connection.execute(PLAIN)
    assert postgres.query(name, "SELECT owner FROM seats WHERE seat_id = 14") == "nobody"
