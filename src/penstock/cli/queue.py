"""``penstock queue``: the places where work waits, of any protocol, and the jobs in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.exits import Exit, NotFound
from penstock.cli.options import configured
from penstock.cli.output import print_json, print_table, say, words_of
from penstock.cli.progress import batches
from penstock.cli.remote import on_admin
from penstock.cli.root import COMMANDS, Group
from penstock.core.errors import ConfigError, UnknownName
from penstock.hall import ROOMS
from penstock.settings import Loaded

if TYPE_CHECKING:
    from penstock.core.admin import Admin, Done, QueueView, WorkView

__all__ = ["queue"]

_BATCH = 100
_PAGE = 500

T = TypeVar("T")
_as_json = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
_all = click.option("--all", "every", is_flag=True, help="All of them.")


class _Door:
    """The operator's door of the protocol that a command is for."""

    def __init__(self, loaded: Loaded, protocol: str | None) -> None:
        self._loaded = loaded
        if protocol is None:
            protocol = loaded.configured[0] if len(loaded.configured) == 1 else "natq"
        self._protocol = protocol

    def on(self, act: Callable[[Admin], Awaitable[T]]) -> T:
        """What ``act`` answers there."""
        return on_admin(self._loaded, self._protocol, act)


def _of_a_protocol(command: Callable[..., Any]) -> Callable[..., Any]:
    """One flag for each room; the command gets the `_Door` first."""

    @configured
    @wraps(command)
    def function(loaded: Loaded, *args: Any, protocol: str | None, **kwargs: Any) -> Any:
        return command(_Door(loaded, protocol), *args, **kwargs)

    for name in reversed(ROOMS):
        option = click.option(
            f"--{name}", "protocol", flag_value=name, default=None, help=f"Queues of {name}."
        )
        function = option(function)
    return function


@click.group(cls=Group, short_help=COMMANDS["queue"])
def queue() -> None:
    """Look at queues and their jobs; pause, retry, remove, repair.

    Whose queues: the protocol with a flag, else the only one with a section in the settings,
    else natq. What a protocol cannot do, such as pausing a natq queue, is said.
    """


@queue.command("ls")
@_of_a_protocol
@_as_json
def list_(door: _Door, as_json: bool) -> None:
    """List all queues with what is in them."""
    found = door.on(lambda admin: admin.queues())
    if as_json:
        print_json(found)
        return
    rows = [(q.name, q.waiting, q.running, q.delayed, q.failed, q.paused) for q in found]
    columns = ["queue", "waiting", "running", "delayed", "failed", "paused"]
    print_table(columns, rows, empty="no queues")


@queue.command()
@click.argument("name")
@_of_a_protocol
@_as_json
def stats(door: _Door, name: str, as_json: bool) -> None:
    """Show what is known of one queue."""
    found = door.on(lambda admin: _queue(admin, name))
    if as_json:
        print_json(found)
        return
    facts = {"queue": found.name, "waiting": found.waiting, "running": found.running}
    facts |= {"delayed": found.delayed, "failed": found.failed, "paused": found.paused}
    _print_facts(facts | found.detail)


@queue.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_of_a_protocol
def pause(door: _Door, names: Sequence[str]) -> None:
    """Give out no more jobs of these queues; what runs goes on."""
    _each(door, names, action="pause", done="paused", was="was paused already")


@queue.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_of_a_protocol
def resume(door: _Door, names: Sequence[str]) -> None:
    """Give out jobs of these queues again."""
    _each(door, names, action="resume", done="resumed", was="was not paused")


@queue.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_of_a_protocol
def rebuild(door: _Door, names: Sequence[str]) -> None:
    """Count again what is kept by counting, after clients that did not keep it.

    On OmniQ: the slots and readiness of groups and, where clients of SDK 4.x are about, the
    statistics and indexes that they read. Safe while the queue is in use.
    """

    async def act(admin: Admin) -> None:
        _must_know(admin, "rebuild")
        for name in names:
            await _queue(admin, name)
            done = await admin.act("rebuild", name, ())
            note = f"; {done.note}" if done.note else ""
            say(f"{name}: {done.changed} groups mended{note}")

    door.on(act)


@queue.command()
@click.argument("name")
@click.option("--state", default="", metavar="STATE", help="Only jobs in this state.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True)
@_of_a_protocol
@_as_json
def jobs(door: _Door, name: str, state: str, limit: int, as_json: bool) -> None:
    """List the jobs of a queue."""

    async def act(admin: Admin) -> tuple[list[WorkView], bool]:
        await _queue(admin, name)
        page = await admin.find(name=name, state=state, limit=limit)
        return list(page.items), bool(page.cursor)

    found, more = door.on(act)
    if as_json:
        print_json(found)
        return
    rows = [(one.work_id, one.state, one.attempt, one.at, one.error) for one in found]
    print_table(["id", "state", "attempt", "since", "error"], rows, empty="no jobs")
    if more:
        say(f"there are more than {limit}; see them with --limit")


@queue.command()
@click.argument("name")
@click.argument("work_id", metavar="ID")
@_of_a_protocol
@_as_json
def show(door: _Door, name: str, work_id: str, as_json: bool) -> None:
    """Show one job with all that is known of it."""

    async def act(admin: Admin) -> WorkView:
        found = await admin.show(name, work_id)
        if found is None:
            await _queue(admin, name)
            raise NotFound(
                f"queue {name!r} has no job {work_id!r}",
                remedy=f"see them with `penstock queue jobs {name}`.",
            )
        return found

    found = door.on(act)
    if as_json:
        print_json(found)
        return
    facts: dict[str, Any] = {"queue": found.name, "id": found.work_id, "state": found.state}
    facts |= {"attempt": found.attempt, "since": found.at, "error": found.error}
    _print_facts(facts | found.detail)


@queue.command()
@click.argument("name")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@_all
@_of_a_protocol
def retry(door: _Door, name: str, ids: Sequence[str], every: bool) -> int:
    """Let failed jobs wait again, with all their attempts."""
    _ids_or_all(ids, every)
    return _bulk(door, name, ids, "failed", action="retry", done="retried")


@queue.command()
@click.argument("name")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@_all
@click.option("--state", default="", metavar="STATE", help="With --all: those in this state.")
@_of_a_protocol
def rm(
    door: _Door,
    name: str,
    ids: Sequence[str],
    every: bool,
    state: str,
) -> int:
    """Remove jobs for good. Running ones are refused."""
    _ids_or_all(ids, every)
    if every and not state:
        raise click.UsageError("say with --state which jobs are meant by --all")
    return _bulk(door, name, ids, state, action="rm", done="removed")


# What they share ------------------------------------------------------------------------


def _each(door: _Door, names: Sequence[str], *, action: str, done: str, was: str) -> None:
    async def act(admin: Admin) -> None:
        _must_know(admin, action)
        for name in names:
            await _queue(admin, name)
            changed = (await admin.act(action, name, ())).changed
            say(f"{name} {done if changed else was}")

    door.on(act)


def _bulk(
    door: _Door,
    name: str,
    ids: Sequence[str],
    state: str,
    *,
    action: str,
    done: str,
) -> int:
    """Act on these jobs, or on all in ``state``, some at a time. FAILED if any was refused."""

    async def act(admin: Admin) -> int:
        _must_know(admin, action)
        await _queue(admin, name)
        chosen = list(ids) or await _all_in(admin, name, state)
        changed = 0
        refused: list[str] = []
        for some in batches(chosen, _BATCH, name):
            told: Done = await admin.act(action, name, some)
            changed += told.changed
            refused += told.refused
        for one in refused:
            say(f"not {done}: {one}")
        say(f"{done}: {changed}")
        return Exit.FAILED if refused else Exit.OK

    return door.on(act)


def _must_know(admin: Admin, action: str) -> None:
    """Refuse what a protocol cannot do, before anything is looked at."""
    if action not in admin.actions:
        dead = (
            "; `penstock dlq replay` gives dead letters another life" if action == "retry" else ""
        )
        raise ConfigError(
            f"{admin.protocol} has no way to {action} a queue or its jobs",
            remedy=f"it can {', '.join(admin.actions)}{dead}",
            code="queue.action",
        )


async def _all_in(admin: Admin, name: str, state: str) -> list[str]:
    found: list[str] = []
    cursor = ""
    while True:
        page = await admin.find(name=name, state=state, limit=_PAGE, cursor=cursor)
        found += [one.work_id for one in page.items]
        cursor = page.cursor
        if not cursor:
            return found


async def _queue(admin: Admin, name: str) -> QueueView:
    """The queue of that name. Raises `UnknownName` with the nearest one."""
    known = {one.name: one for one in await admin.queues()}
    if name not in known:
        raise UnknownName("queue", name, known)
    return known[name]


def _ids_or_all(ids: Sequence[str], every: bool) -> None:
    if bool(ids) == every:
        raise click.UsageError("name the IDs, or give --all")


def _print_facts(facts: dict[str, Any]) -> None:
    print_table(["", ""], [(key, words_of(value)) for key, value in facts.items()], empty="")
