"""``penstock dev``: an embedded server, and a worker that is replaced whenever the code changes.

The old worker drains before the new one starts, so nothing that runs is lost or run twice. Code
that cannot be imported is shown, and the next change is waited for; the server and what is
stored stay through all of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import click

from penstock.cli.child import WorkerChild
from penstock.cli.options import configured, protocol_flags, protocols_of, setting
from penstock.cli.output import say
from penstock.cli.remote import DEFAULT_DATA, leave_address, run_async, take_address_back
from penstock.cli.root import COMMANDS
from penstock.cli.server import redis_for, server_for
from penstock.hall import brokers_of
from penstock.settings import Loaded, Settings
from penstock.settings.secrets import masked_url

__all__ = ["dev"]


@click.command(short_help=COMMANDS["dev"])
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--watch",
    "folders",
    multiple=True,
    metavar="DIR",
    type=click.Path(exists=True),
    help="Folder to watch [.].",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=0,
    help="Port of the embedded server [a free one].",
)
@protocol_flags
@setting("worker.concurrency", "--concurrency", "Handlers at once.", metavar="N")
@configured
def dev(loaded: Loaded, app: str, folders: tuple[str, ...], port: int, **flags: bool) -> None:
    """Run MODULE:APP with servers of its own, and reload it on every change.

    The servers' data stays in .penstock; other commands started in this folder find the servers
    by themselves. Which protocols are served: those with a flag here, else those with a section
    in the settings, else natq. With OmniQ there is a Redis, too.
    """
    data = Path(loaded.settings.data or DEFAULT_DATA).absolute()
    work = Work(app, protocols_of(loaded, flags), folders or (".",))
    run_async(_develop(loaded, work, data, port))


class Work(NamedTuple):
    """What is developed."""

    app: str
    protocols: Sequence[str]
    folders: Iterable[str]


async def _develop(loaded: Loaded, work: Work, data: Path, port: int) -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(_server(loaded.settings, data, port))
        say(f"NATS: {masked_url(url)}")
        environ = {**os.environ, "PENSTOCK_NATS_URL": url}
        if "redis" in brokers_of(work.protocols):
            url = await stack.enter_async_context(_redis(loaded.settings, data))
            say(f"Redis: {masked_url(url)}")
            environ["PENSTOCK_REDIS_URL"] = url
        if loaded.origins["worker.concurrency"] == "--concurrency":
            environ["PENSTOCK_WORKER__CONCURRENCY"] = str(loaded.settings.worker.concurrency)
        if loaded.file is not None:
            environ["PENSTOCK_CONFIG"] = str(loaded.file)
        flags = [f"--{protocol}" for protocol in work.protocols]
        child = WorkerChild([work.app, *flags], environ)
        stop = _on_signals(child)
        await _reload(child, work.folders, data, stop)


async def _reload(
    child: WorkerChild, folders: Iterable[str], data: Path, stop: asyncio.Event
) -> None:
    """Keep a worker of the newest code running until ``stop``."""
    from watchfiles import PythonFilter, awatch

    wanted = PythonFilter(ignore_paths=[data], extra_extensions=(".toml", ".env"))
    async with asyncio.TaskGroup() as group:
        watched = await _started(child, group)
        async for changes in awatch(*folders, watch_filter=wanted, stop_event=stop, step=50):
            names = sorted({Path(path).name for _, path in changes})
            say(f"changed: {', '.join(names[:3])}{' …' if len(names) > 3 else ''}")
            await _drained(child, watched)
            watched = await _started(child, group)
        await _drained(child, watched)


async def _started(child: WorkerChild, group: asyncio.TaskGroup) -> asyncio.Task[None]:
    await child.start()
    return group.create_task(_tell_of_end(child), name="dev:worker-end")


async def _drained(child: WorkerChild, watched: asyncio.Task[None]) -> None:
    watched.cancel()
    if child.running:
        say("letting the worker finish what it runs (Ctrl-C again: do not wait)")
    await child.drain()


async def _tell_of_end(child: WorkerChild) -> None:
    code = await child.ended()
    say(f"the worker ended with exit code {code}; the next change starts it again")


def _on_signals(child: WorkerChild) -> asyncio.Event:
    """An event that the first signal sets; a second one forces the worker to end."""
    stop = asyncio.Event()

    def heard() -> None:
        if stop.is_set():
            child.force()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, heard)
    return stop


@asynccontextmanager
async def _server(settings: Settings, data: Path, port: int) -> AsyncIterator[str]:
    """The configured server, or an embedded one that others in this folder can find."""
    if settings.nats.url:
        yield settings.nats.url
        return
    _prepare(data)
    async with server_for(settings, folder=data, port=port) as url:
        leave_address(data, url)
        try:
            yield url
        finally:
            take_address_back(data)


@asynccontextmanager
async def _redis(settings: Settings, data: Path) -> AsyncIterator[str]:
    """The same for Redis, where a protocol is configured that needs one."""
    async with redis_for(settings, folder=data) as url:
        if url != settings.redis.url:
            leave_address(data, url, "redis")
        try:
            yield url
        finally:
            take_address_back(data, "redis")


def _prepare(data: Path) -> None:
    data.mkdir(parents=True, exist_ok=True)
    (data / ".gitignore").write_text("*\n")  # what is stored there belongs to nobody's history
