"""The NATS server that a command works with: the configured one, or one of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.settings import Settings

__all__ = ["server_for"]


@asynccontextmanager
async def server_for(
    settings: Settings, *, folder: Path | None = None, port: int = 0
) -> AsyncIterator[str]:
    """The address to use while the block runs. An embedded server keeps its data in ``folder``,
    or in a temporary one."""
    if settings.nats.url:
        yield settings.nats.url
        return
    from penstock.broker.embedded import EmbeddedNats

    store = folder / "nats" if folder else None
    async with EmbeddedNats(store, port=port, binary=settings.nats.server_binary) as server:
        yield server.url
