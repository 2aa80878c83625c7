"""``penstock schedule``: crons of Open Job Spec: what is enqueued when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click
import msgspec

from penstock.cli.exits import NotFound
from penstock.cli.inputs import body_of
from penstock.cli.options import configured
from penstock.cli.output import print_json, print_table, say
from penstock.cli.remote import on_ojs
from penstock.cli.root import COMMANDS, Group
from penstock.core.cron import CronSchedule
from penstock.settings import Loaded

if TYPE_CHECKING:
    from penstock.protocols.ojs.crons import CronRow
    from penstock.protocols.ojs.engine import Engine

__all__ = ["schedule"]

_as_json = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
_zone = click.option("--zone", default="UTC", show_default=True, help="IANA time zone.")


@click.group(cls=Group, short_help=COMMANDS["schedule"])
def schedule() -> None:
    """Crons: list, add, remove, preview."""


@schedule.command("ls")
@_as_json
@configured
def list_(loaded: Loaded, as_json: bool) -> None:
    """List every cron with its next time."""

    async def act(engine: Engine) -> Sequence[CronRow]:
        return await engine.crons.all()

    rows = on_ojs(loaded, act)
    shown = [
        {
            "name": row.name,
            "expression": row.expression,
            "timezone": row.timezone,
            "next": row.next_at,
            "runs": row.run_count,
            "overlap": row.overlap_policy,
            "misfire": str(row.misfire),
            "enabled": row.enabled,
        }
        for row in rows
    ]
    if as_json:
        print_json(shown)
        return
    columns = ["name", "expression", "zone", "next", "runs", "overlap", "misfire", "enabled"]
    print_table(columns, [list(one.values()) for one in shown], empty="no crons")


@schedule.command()
@click.argument("name")
@click.argument("expression")
@click.argument("job_type", metavar="TYPE")
@click.argument("inputs", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--args", "text", metavar="JSON|@FILE|-", help="The arguments, as a JSON array.")
@click.option("--queue", metavar="NAME", help="The queue  [default].")
@click.option(
    "--overlap",
    type=click.Choice(["skip", "allow", "cancel_previous", "enqueue"]),
    default="skip",
    show_default=True,
    help="While the last job is not over.",
)
@click.option(
    "--misfire",
    type=click.Choice(["skip", "once", "all"]),
    default="once",
    show_default=True,
    help="What was missed while nobody was there.",
)
@_zone
@configured
def add(
    loaded: Loaded,
    *,
    name: str,
    expression: str,
    job_type: str,
    inputs: tuple[str, ...],
    text: str | None,
    queue: str | None,
    overlap: str,
    misfire: str,
    zone: str,
) -> None:
    """Enqueue a job of TYPE whenever EXPRESSION says so ('0 9 * * *', @daily, '@every 10m').

    A cron of that name is replaced.
    """
    body = body_of(inputs, text)
    if text is not None and not isinstance(body, list):
        raise click.UsageError("--args wants a JSON array; key=value pairs make one object")

    async def act(engine: Engine) -> tuple[CronRow, bool]:
        from penstock.protocols.ojs.client import submission
        from penstock.protocols.ojs.crons import parse_cron
        from penstock.protocols.ojs.fields import object_of

        options = {"queue": queue} if queue else {}
        asked: dict[str, Any] = {
            "name": name,
            "expression": expression,
            "timezone": zone,
            "overlap_policy": overlap,
            "misfire_policy": misfire,
            "job_template": msgspec.Raw(submission(job_type, body, options=options)),
        }
        row = parse_cron(object_of(msgspec.json.encode(asked)), engine.shared)
        return await engine.crons.register(row)

    row, new = on_ojs(loaded, act)
    at = row.next_at
    upcoming = f"; next at {at.isoformat()}" if at is not None else ""
    say(f"{'added' if new else 'replaced'} {name}{upcoming}")


@schedule.command()
@click.argument("name")
@configured
def rm(loaded: Loaded, name: str) -> None:
    """Forget a cron; the jobs it has created stay."""

    async def act(engine: Engine) -> None:
        from penstock.protocols.ojs.refusal import Refusal

        if isinstance(await engine.crons.remove(name), Refusal):
            raise NotFound(f"there is no cron {name}", remedy="see `penstock schedule ls`")

    on_ojs(loaded, act)
    say(f"removed {name}")


@schedule.command()
@click.argument("expression")
@_zone
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=5, show_default=True)
@_as_json
def preview(expression: str, zone: str, count: int, as_json: bool) -> None:
    """Tell when EXPRESSION fires next, without a server."""
    now = datetime.now(UTC)
    times: list[datetime] = []
    plan = CronSchedule.parse(expression, zone, now)
    at: datetime | None = now
    while len(times) < count and at is not None and (at := plan.next_after(at)) is not None:
        times.append(at.astimezone(ZoneInfo(zone)))
    if as_json:
        print_json([one.isoformat() for one in times])
        return
    for one in times:
        click.echo(one.isoformat())
