"""The servers that a command works with: the configured ones, or some of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.hall import Broker

__all__ = ["SERVERS", "redis_for", "server_for"]

EMBEDDED: Final = "embedded"


@asynccontextmanager
async def server_for(
    settings: Settings, *, folder: Path | None = None, port: int = 0
) -> AsyncIterator[str]:
    """The address of NATS to use while the block runs. An embedded server keeps its data in
    ``folder``, or in a temporary one."""
    if settings.nats.url:
        yield settings.nats.url
        return
    from penstock.broker.embedded import EmbeddedNats

    store = folder / "nats" if folder else None
    async with EmbeddedNats(store, port=port, binary=settings.nats.server_binary) as server:
        yield server.url


@asynccontextmanager
async def redis_for(settings: Settings, *, folder: Path | None = None) -> AsyncIterator[str]:
    """The same for Redis."""
    if settings.redis.url not in ("", EMBEDDED):
        yield settings.redis.url
        return
    from penstock.broker.redis_embedded import EmbeddedRedis

    async with EmbeddedRedis(folder / "redis" if folder else None) as server:
        yield server.url


Servers = Callable[..., AbstractAsyncContextManager[str]]
SERVERS: Final[dict[Broker, Servers]] = {"nats": server_for, "redis": redis_for}
