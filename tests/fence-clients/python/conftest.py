"""What the tests share."""

import pytest

from database import Postgres
from recipes import read_recipes


@pytest.fixture(scope="session")
def recipes():
    return read_recipes()


@pytest.fixture(scope="session")
def postgres():
    server = Postgres()
    yield server
    server.close()


@pytest.fixture
def database(postgres, request):
    """A fenced database of this test alone: its name and its address."""
    name = request.node.name.replace("[", "-").replace("]", "").lower()
    return name, postgres.fenced_database(name)
