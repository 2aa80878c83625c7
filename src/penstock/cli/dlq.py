"""``penstock dlq``: dead letters of every protocol: look, give another life, or drop for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.exits import Exit, NotFound
from penstock.cli.options import configured
from penstock.cli.output import print_json, print_table, say, words_of
from penstock.cli.remote import on_admin
from penstock.cli.root import COMMANDS, Group
from penstock.settings import Loaded

if TYPE_CHECKING:
    from penstock.core.admin import Admin, WorkView

__all__ = ["dlq"]

_DEAD = "dead"
_PAGE = 500

_protocol = click.option(
    "--protocol", default="natq", show_default=True, metavar="NAME", help="Whose dead letters."
)
_as_json = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
_dry_run = click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
_all = click.option("--all", "every", is_flag=True, help="All dead letters (of TASK, if given).")


@click.group(cls=Group, short_help=COMMANDS["dlq"])
def dlq() -> None:
    """Look at dead letters, replay or drop them."""


@dlq.command("ls")
@click.argument("task", default="")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True)
@_protocol
@_as_json
@configured
def list_(loaded: Loaded, task: str, limit: int, protocol: str, as_json: bool) -> None:
    """List dead letters, of TASK or of all tasks."""

    async def act(admin: Admin) -> tuple[list[WorkView], bool]:
        page = await admin.find(name=task, state=_DEAD, limit=limit)
        return list(page.items), bool(page.cursor)

    found, more = on_admin(loaded, protocol, act)
    if as_json:
        print_json(found)
        return
    rows = [(one.name, one.work_id, one.attempt, one.at, one.error) for one in found]
    print_table(["task", "id", "attempt", "since", "error"], rows, empty="no dead letters")
    if more:
        say(f"there are more than {limit}; see them with --limit")


@dlq.command()
@click.argument("task")
@click.argument("work_id", metavar="ID")
@_protocol
@_as_json
@configured
def show(loaded: Loaded, task: str, work_id: str, protocol: str, as_json: bool) -> None:
    """Show one dead letter with all that is known of it."""

    async def act(admin: Admin) -> WorkView:
        page = await _found(admin, task)
        known = {one.work_id: one for one in page}
        if work_id not in known:
            raise _no_letter(task, work_id, protocol)
        return known[work_id]

    found = on_admin(loaded, protocol, act)
    if as_json:
        print_json(found)
        return
    facts = {
        "task": found.name,
        "id": found.work_id,
        "state": found.state,
        "attempt": found.attempt,
        "since": found.at,
        "error": found.error,
        "result": found.result,
        **found.detail,
    }
    print_table(["", ""], [(key, words_of(value)) for key, value in facts.items()], empty="")


@dlq.command()
@click.argument("task", default="")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@_all
@_dry_run
@_protocol
@configured
def replay(loaded: Loaded, **chosen: Any) -> int:
    """Give dead letters another life: they are enqueued again, with fresh attempts."""
    return _act(loaded, "replay", "replayed", **chosen)


@dlq.command()
@click.argument("task", default="")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@_all
@_dry_run
@_protocol
@configured
def drop(loaded: Loaded, **chosen: Any) -> int:
    """Drop dead letters for good."""
    return _act(loaded, "drop", "dropped", **chosen)


def _act(
    loaded: Loaded,
    action: str,
    done: str,
    *,
    task: str,
    ids: Sequence[str],
    every: bool,
    dry_run: bool,
    protocol: str,
) -> int:
    if bool(ids) == every:
        raise click.UsageError("name a TASK and its IDs, or give --all")

    async def act(admin: Admin) -> int:
        found = await _found(admin, task)
        chosen = _chosen(found, task, ids, protocol)
        changed = 0
        for name in sorted({one.name for one in chosen}):
            work_ids = [one.work_id for one in chosen if one.name == name]
            if dry_run:
                click.echo("\n".join(f"{name} {work_id}" for work_id in work_ids))
                changed += len(work_ids)
                continue
            told = await admin.act(action, name, work_ids)
            changed += told.changed
            for refused in told.refused:
                say(f"not {done}: {name} {refused}")
        say(f"{'would be ' if dry_run else ''}{done}: {changed}")
        return Exit.OK if dry_run or changed == len(chosen) else Exit.FAILED

    return on_admin(loaded, protocol, act)


async def _found(admin: Admin, task: str) -> list[WorkView]:
    """Every dead letter of ``task``, or of all tasks."""
    found: list[WorkView] = []
    cursor = ""
    while True:
        page = await admin.find(name=task, state=_DEAD, limit=_PAGE, cursor=cursor)
        found += page.items
        cursor = page.cursor
        if not cursor:
            return found


def _chosen(
    found: Sequence[WorkView], task: str, ids: Sequence[str], protocol: str
) -> list[WorkView]:
    if not ids:
        return list(found)
    known = {one.work_id: one for one in found}
    for work_id in ids:
        if work_id not in known:
            raise _no_letter(task, work_id, protocol)
    return [known[work_id] for work_id in dict.fromkeys(ids)]


def _no_letter(task: str, work_id: str, protocol: str) -> NotFound:
    flag = "" if protocol == "natq" else f" --protocol {protocol}"
    return NotFound(
        f"task {task!r} has no dead letter {work_id!r}",
        remedy=f"see them with `penstock dlq ls {task}{flag}`.",
    )
