"""A real Redis for the whole worker, and a client that checks the laws after every call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

import pytest
import redis as redis_py

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.core.ids import short_token
from penstock.protocols.omniq.calls import Call
from penstock.protocols.omniq.client import OmniqClient
from tests.protocols.omniq.invariants import check_invariants

R = TypeVar("R")


class WatchedClient(OmniqClient):
    """Every call is followed by a look at all keys of its queue."""

    raw: Any

    async def _run(self, call: Call[R]) -> R:
        try:
            return await super()._run(call)
        finally:
            if not call.key.startswith(b"{cc:"):
                mirrors = self._scripts.compat == "v4"
                check_invariants(self.raw, call.key.decode().removesuffix(":meta"), mirrors=mirrors)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """The Redis shared by all tests of one worker. Never stop, kill or restart it."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def raw(redis_server: EmbeddedRedis) -> Iterator[Any]:
    """The keys themselves, through somebody else's client."""
    with redis_py.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def queue() -> str:
    """A queue that no other test uses."""
    return f"q-{short_token()}"


@pytest.fixture(params=["v1", "v4"])
async def client(
    request: pytest.FixtureRequest, redis_server: EmbeddedRedis, raw: Any
) -> AsyncIterator[OmniqClient]:
    """A client under both compatibilities, watched."""
    async with WatchedClient(redis_server.url, compat=request.param) as watched:
        watched.raw = raw
        yield watched


@pytest.fixture
def fresh_redis() -> Iterator[EmbeddedRedis]:
    """A server of the test's own: restart, kill and flush it at will."""
    with EmbeddedRedis(aof="always") as server:
        yield server
