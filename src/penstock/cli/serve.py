"""``penstock serve``: a job server for clients that speak HTTP."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import click

from penstock.cli.child import stop_with_parent
from penstock.cli.options import configured, setting
from penstock.cli.output import say
from penstock.cli.remote import run_async
from penstock.cli.root import COMMANDS
from penstock.cli.server import server_for
from penstock.cli.worker import set_up_logs
from penstock.settings import Loaded, Settings
from penstock.settings.secrets import masked_url

__all__ = ["serve"]

_SHARED: Final = "PENSTOCK_SHARED_PORT"


@click.command(short_help=COMMANDS["serve"])
@click.option("--ojs", is_flag=True, expose_value=False, help="Serve Open Job Spec (the default).")
@setting("http.bind", "--http", "Where to listen.", metavar="HOST:PORT")
@setting("http.token", "--token", "Bearer token that clients must send.", metavar="TOKEN")
@click.option("--processes", default=1, show_default=True, help="Server processes.")
@click.option("--conformance", is_flag=True, help="Allow what only conformance runs need.")
@setting("log.format", "--log-format", "text, json or auto.", metavar="FORMAT")
@setting("log.level", "--log-level", "debug, info, warning or error.", metavar="LEVEL")
@configured
def serve(loaded: Loaded, processes: int, conformance: bool) -> int:
    """Run a job server until SIGTERM or Ctrl-C.

    Without an address of NATS a server of its own is started, whose data is in --data or
    vanishes at the end. Several servers, on one machine or on many, answer as one.
    """
    from penstock.runtime.signals import leave_at_once
    from penstock.runtime.supervisor import supervised

    if processes < 1:
        raise click.UsageError("--processes must be at least 1")
    if supervised():
        leave_at_once()
    stop_with_parent()
    settings = loaded.settings
    if conformance:
        settings = _conforming(settings)
    set_up_logs(settings)
    if processes > 1 and not supervised():
        return run_async(_supervise(settings, processes))
    return run_async(_serve(settings, ("ojs",)), uvloop=settings.worker.uvloop)


async def _serve(settings: Settings, protocols: Sequence[str]) -> int:
    from penstock.app import open_link
    from penstock.hall import Hall
    from penstock.server import serve_http

    async with AsyncExitStack() as stack:
        hall = Hall(settings, stack, open_link)

        def ready(url: str) -> None:
            at = ", ".join(masked_url(address) for address in hall.addresses)
            say(f"serving {', '.join(protocols)} at {url} (NATS at {at})")

        shared = os.environ.get(_SHARED) == "1"
        return await serve_http(settings, protocols, hall, shared=shared, ready=ready)


async def _supervise(settings: Settings, count: int) -> int:
    """The same command again, once per process, on one NATS and one port."""
    from penstock.runtime.supervisor import Supervisor
    from penstock.web.server import parse_address

    if parse_address(settings.http.bind)[1] == 0:
        raise click.UsageError("several processes need a port that is named: --http HOST:PORT")
    command = [sys.executable, "-m", "penstock", *sys.argv[1:]]
    folder = Path(settings.data) if settings.data else None
    async with server_for(settings, folder=folder) as url:
        if url != settings.nats.url:
            command += ["--nats", url]
            say(f"nats: {url}")
        os.environ[_SHARED] = "1"
        return await Supervisor(command, count).run()


def _conforming(settings: Settings) -> Settings:
    import msgspec

    ojs = msgspec.structs.replace(settings.ojs, conformance=True)
    return msgspec.structs.replace(settings, ojs=ojs)
