"""Fixtures of the scenarios: both sides on one Redis, each version, each of our clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as redis_py

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.core.ids import short_token
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.sync_client import SyncOmniqClient
from tests.interop.omniq.peer_env import VERSIONS, RegistryUnreachable, peer_python
from tests.interop.omniq.sides import Ours, Peer, Side, Theirs, in_a_thread

OURS: dict[str, type[OmniqClient] | type[SyncOmniqClient]] = {
    "asyncio": OmniqClient,
    "threads": SyncOmniqClient,
}


@pytest.fixture(scope="session")
def interop_redis() -> Iterator[EmbeddedRedis]:
    """One Redis for all scenarios of a worker; each scenario has a queue of its own."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture(scope="session")
def open_peer() -> Callable[..., Peer]:
    """Start PyPI omniq of a version; skips where it is not there and cannot be fetched."""

    def start(version: str, url: str, **options: Any) -> Peer:
        try:
            python = peer_python(version)
        except RegistryUnreachable as error:
            pytest.skip(f"PyPI omniq {version} cannot be installed, no registry answers: {error}")
        return Peer(python, url, **options)

    return start


@pytest.fixture(scope="session", params=VERSIONS)
def peer(
    request: pytest.FixtureRequest, interop_redis: EmbeddedRedis, open_peer: Callable[..., Peer]
) -> Iterator[tuple[str, Peer]]:
    """Each version of theirs with its process."""
    running = open_peer(request.param, interop_redis.url)
    yield request.param, running
    running.close()


@pytest.fixture
def version(peer: tuple[str, Peer]) -> str:
    """Which omniq the other side is."""
    return peer[0]


@pytest.fixture
def raw(interop_redis: EmbeddedRedis) -> Iterator[Any]:
    """The keys themselves."""
    with redis_py.Redis.from_url(interop_redis.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def queue() -> str:
    """A queue that no other scenario uses."""
    return f"s-{short_token()}"


@pytest.fixture
def theirs(peer: tuple[str, Peer], raw: Any) -> Theirs:
    """Their side."""
    return Theirs(raw, peer[1], mirrors=peer[0].startswith("4"))


@pytest.fixture(params=OURS)
def ours(
    request: pytest.FixtureRequest, peer: tuple[str, Peer], interop_redis: EmbeddedRedis, raw: Any
) -> Iterator[Ours]:
    """Our side: each client, with the mirrors of 4.x beside a 4.x."""
    mirrors = peer[0].startswith("4")
    client = in_a_thread(OURS[request.param](interop_redis.url, compat="v4" if mirrors else "v1"))
    yield Ours(raw, client, mirrors=mirrors)
    client.close()


@pytest.fixture(params=["ours-theirs", "theirs-ours"])
def pair(request: pytest.FixtureRequest, ours: Ours, theirs: Theirs) -> tuple[Side, Side]:
    """Both sides in both orders: what the first begins, the second goes on with."""
    return (ours, theirs) if request.param == "ours-theirs" else (theirs, ours)
