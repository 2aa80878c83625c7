"""Reaching what runs elsewhere: a client on the configured NATS, or on a running `penstock dev`.

A client must not start a server of its own: it would find nothing there. So without a URL the
server of ``penstock dev`` is looked for, which leaves its address in its data folder.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from penstock.core.errors import Problem
from penstock.settings import Loaded, Settings

if TYPE_CHECKING:
    from penstock.app import Client

__all__ = [
    "DEFAULT_DATA",
    "found_dev_server",
    "leave_address",
    "on_client",
    "run_async",
    "settings_at",
    "settings_to_reach",
    "take_address_back",
]

DEFAULT_DATA: Final = ".penstock"
_ADDRESS_FILE: Final = "dev.json"

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T], *, uvloop: bool = False) -> T:
    """Run ``work`` to its end on a loop of its own; Ctrl-C ends it as ``KeyboardInterrupt``."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if uvloop:
        with suppress(ImportError):
            from uvloop import new_event_loop

            factory = new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def on_client(loaded: Loaded, act: Callable[[Client], Awaitable[T]]) -> T:
    """What ``act`` answers on a connected client."""

    async def work() -> T:
        async with _client(settings_to_reach(loaded)) as client:
            return await act(client)

    return run_async(work())


def settings_to_reach(loaded: Loaded) -> Settings:
    """The settings with an address in them. Raises `Problem` when there is none to be found."""
    settings = loaded.settings
    if settings.nats.url:
        return settings
    url = found_dev_server(settings)
    if url is None:
        raise Problem(
            "no NATS server is configured and no `penstock dev` runs here",
            code="nats.url",
            remedy="give --nats URL, set PENSTOCK_NATS_URL, or start `penstock dev MODULE:APP`.",
        )
    return settings_at(settings, url)


def settings_at(settings: Settings, url: str) -> Settings:
    """The same settings with another address of NATS."""
    return msgspec.structs.replace(settings, nats=msgspec.structs.replace(settings.nats, url=url))


def leave_address(data: Path, url: str) -> None:
    """Tell other commands where the server of this process is; ``data`` is its folder."""
    (data / _ADDRESS_FILE).write_bytes(msgspec.json.encode({"url": url, "pid": os.getpid()}))


def take_address_back(data: Path) -> None:
    """Undo `leave_address`."""
    (data / _ADDRESS_FILE).unlink(missing_ok=True)


def found_dev_server(settings: Settings) -> str | None:
    """The address of a `penstock dev` in this folder or one above it, if it still runs."""
    name = Path(settings.data or DEFAULT_DATA) / _ADDRESS_FILE
    for folder in (Path.cwd(), *Path.cwd().parents):
        with suppress(OSError, ValueError, KeyError, TypeError):
            said = msgspec.json.decode((folder / name).read_bytes())
            os.kill(int(said["pid"]), 0)  # raises when nobody has that number any more
            return str(said["url"])
    return None


@asynccontextmanager
async def _client(settings: Settings) -> AsyncIterator[Client]:
    from penstock.app import connect

    async with connect(settings=settings) as client:
        yield client
