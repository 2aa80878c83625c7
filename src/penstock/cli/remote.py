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

import click
import msgspec

from penstock.cli.exits import NotFound
from penstock.core.errors import Problem
from penstock.settings import Loaded, Settings

if TYPE_CHECKING:
    from penstock.app import Client
    from penstock.core.admin import Admin
    from penstock.hall import Broker
    from penstock.protocols.ojs.engine import Engine
    from penstock.protocols.ojs.refusal import Refusal

__all__ = [
    "DEFAULT_DATA",
    "found_dev_server",
    "leave_address",
    "on_admin",
    "on_client",
    "on_ojs",
    "run_async",
    "settings_at",
    "settings_to_reach",
    "take_address_back",
]

DEFAULT_DATA: Final = ".penstock"
_ADDRESS_FILES: Final[dict[Broker, str]] = {"nats": "dev.json", "redis": "dev-redis.json"}
_NAMES: Final[dict[Broker, str]] = {"nats": "NATS", "redis": "Redis"}

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


def on_admin(loaded: Loaded, protocol: str, act: Callable[[Admin], Awaitable[T]]) -> T:
    """What ``act`` answers at the operator's door of a protocol."""

    async def work() -> T:
        from penstock.app import open_admin
        from penstock.hall import brokers_of

        (broker,) = brokers_of([protocol])
        async with open_admin(protocol, settings_to_reach(loaded, broker)) as admin:
            return await act(admin)

    return run_async(work())


def on_ojs(loaded: Loaded, act: Callable[[Engine], Awaitable[T]]) -> T:
    """What ``act`` answers on an engine of Open Job Spec that runs no services."""

    async def work() -> T:
        from penstock.app import open_link
        from penstock.protocols.ojs.engine import Engine
        from penstock.protocols.ojs.refusal import Refused

        settings = settings_to_reach(loaded)
        async with open_link(settings) as link:
            engine = await Engine.open(link, settings.ojs, services=False)
            async with engine:
                try:
                    return await act(engine)
                except Refused as error:
                    raise _told(error.refusal) from error

    return run_async(work())


def _told(refusal: Refusal) -> Exception:
    """A refusal in the words and exit codes of the command line."""
    if refusal.status in (400, 413, 422):
        return click.UsageError(refusal.message)
    if refusal.status == 404:
        return NotFound(refusal.message)
    return Problem(refusal.message, code=f"ojs.{refusal.code}")


def settings_to_reach(loaded: Loaded, broker: Broker = "nats") -> Settings:
    """The settings with an address in them. Raises `Problem` when there is none to be found."""
    settings = loaded.settings
    if getattr(settings, broker).url:
        return settings
    url = found_dev_server(settings, broker)
    if url is None:
        flag = " --omniq" if broker == "redis" else ""
        raise Problem(
            f"no {_NAMES[broker]} server is configured and no `penstock dev` with one runs here",
            code=f"{broker}.url",
            remedy=f"give --{broker} URL, set PENSTOCK_{broker.upper()}_URL,"
            f" or start `penstock dev{flag} MODULE:APP`.",
        )
    return settings_at(settings, url, broker)


def settings_at(settings: Settings, url: str, broker: Broker = "nats") -> Settings:
    """The same settings with another address of a broker."""
    section = msgspec.structs.replace(getattr(settings, broker), url=url)
    return msgspec.structs.replace(settings, **{broker: section})


def leave_address(data: Path, url: str, broker: Broker = "nats") -> None:
    """Tell other commands where a server of this process is; ``data`` is its folder."""
    said = msgspec.json.encode({"url": url, "pid": os.getpid()})
    (data / _ADDRESS_FILES[broker]).write_bytes(said)


def take_address_back(data: Path, broker: Broker = "nats") -> None:
    """Undo `leave_address`."""
    (data / _ADDRESS_FILES[broker]).unlink(missing_ok=True)


def found_dev_server(settings: Settings, broker: Broker = "nats") -> str | None:
    """The address of a `penstock dev` in this folder or one above it, if it still runs."""
    name = Path(settings.data or DEFAULT_DATA) / _ADDRESS_FILES[broker]
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
