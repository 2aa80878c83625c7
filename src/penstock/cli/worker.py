"""``penstock worker``: the handlers of an application, served until a signal says stop."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.child import stop_with_parent
from penstock.cli.load import load_app
from penstock.cli.options import configured, protocol_flags, protocols_of, setting
from penstock.cli.output import say
from penstock.cli.remote import found_dev_server, run_async, settings_at
from penstock.cli.root import COMMANDS
from penstock.cli.server import SERVERS
from penstock.settings import Loaded, Settings
from penstock.settings.secrets import masked_url

if TYPE_CHECKING:
    from penstock.app import App

__all__ = ["set_up_logs", "worker"]


@click.command(short_help=COMMANDS["worker"])
@click.argument("app", metavar="MODULE:APP")
@protocol_flags
@setting("worker.concurrency", "--concurrency", "Handlers at once, per process.", metavar="N")
@setting("worker.processes", "--processes", "Worker processes.", metavar="N")
@setting("worker.grace", "--grace", "How long handlers may finish when stopping.", metavar="TIME")
@setting("worker.max_jobs", "--max-jobs", "Replace a process after so many jobs.", metavar="N")
@setting("worker.max_rss_mb", "--max-rss", "Replace a process above so much memory.", metavar="MB")
@setting("worker.health", "--health", "Where /health and /metrics answer.", metavar="[IP:]PORT")
@setting("log.format", "--log-format", "text, json or auto.", metavar="FORMAT")
@setting("log.level", "--log-level", "debug, info, warning or error.", metavar="LEVEL")
@configured
def worker(loaded: Loaded, app: str, **flags: bool) -> int:
    """Run the handlers of MODULE:APP until SIGTERM or Ctrl-C.

    The first signal stops pulling and lets handlers finish (--grace); a second one does not
    wait. Which protocols are served: those with a flag here, else those with a section in the
    settings, else natq.
    """
    from penstock.runtime.signals import leave_at_once
    from penstock.runtime.supervisor import die_with_supervisor, supervised

    if supervised():
        leave_at_once()
        die_with_supervisor(_patience_s(loaded.settings))
    stop_with_parent()
    protocols = protocols_of(loaded, flags)
    settings = _joined(loaded, protocols)
    set_up_logs(settings)
    application = load_app(app)
    if _needs_supervisor(settings):
        return run_async(_supervise(settings, protocols))
    return _serve(settings, application, app, protocols)


def _serve(settings: Settings, application: App, spec: str, protocols: Sequence[str]) -> int:
    """One worker process; its exit code."""
    from penstock.app import serve
    from penstock.runtime import heap

    def ready(addresses: Sequence[str]) -> None:
        heap.settle()
        at = ", ".join(map(masked_url, addresses))
        say(f"serving {spec} over {', '.join(protocols)} at {at}")

    work = serve(application, settings, protocols, ready=ready)
    return run_async(work, uvloop=settings.worker.uvloop)


def set_up_logs(settings: Settings) -> None:
    """Logs as the settings say, on stderr."""
    from penstock.runtime.observe.logs import set_up_logs

    chosen = settings.log.format
    if chosen == "auto":
        chosen = "text" if sys.stderr.isatty() else "json"
    set_up_logs("json" if chosen == "json" else "human", settings.log.level.upper())


def _needs_supervisor(settings: Settings) -> bool:
    """Several processes, or one that ends itself to be replaced, need somebody to start them."""
    from penstock.runtime.supervisor import supervised

    chosen = settings.worker
    limited = chosen.max_jobs is not None or chosen.max_rss_mb is not None
    return not supervised() and (chosen.processes > 1 or limited)


async def _supervise(settings: Settings, protocols: Sequence[str]) -> int:
    """The same command again, once per process, on the same servers."""
    from penstock.hall import brokers_of
    from penstock.runtime.supervisor import Supervisor

    command = [sys.executable, "-m", "penstock", *sys.argv[1:]]
    folder = Path(settings.data) if settings.data else None
    async with AsyncExitStack() as stack:
        for broker in brokers_of(protocols):
            url = await stack.enter_async_context(SERVERS[broker](settings, folder=folder))
            if url != getattr(settings, broker).url:
                command += [f"--{broker}", url]  # they share the embedded server; a later flag wins
                say(f"{broker}: {url}")
        count = settings.worker.processes
        return await Supervisor(command, count, kill_after_s=_patience_s(settings)).run()


def _patience_s(settings: Settings) -> float:
    """How long a process may take to end once it was told to."""
    return settings.worker.grace.total_seconds() + 60


def _joined(loaded: Loaded, protocols: Sequence[str]) -> Settings:
    """The settings, with the addresses of a `penstock dev` in this folder where none is given."""
    from penstock.hall import brokers_of

    settings = loaded.settings
    if settings.data:
        return settings
    for broker in brokers_of(protocols):
        url = None if getattr(settings, broker).url else found_dev_server(settings, broker)
        if url is not None:
            say(f"using the server of the `penstock dev` that runs here: {url}")
            settings = settings_at(settings, url, broker)
    return settings
