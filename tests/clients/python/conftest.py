"""What the tests share."""

import itertools

import pytest
import redis

from servers import Leasehold, Redis

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def leasehold():
    """A server for tests that need nothing special of it. It is not restarted, and names are not shared."""
    with Leasehold() as server:
        yield server


@pytest.fixture(scope="session")
def real_redis():
    """The reference."""
    with Redis() as server:
        yield server


@pytest.fixture
def name(request):
    """A resource name of this test alone."""
    return f"{request.node.originalname}/{next(_numbers)}"


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def client(leasehold, request):
    """redis-py as it comes, in either version of the protocol."""
    with redis.Redis(port=leasehold.port, protocol=request.param) as client:
        yield client
