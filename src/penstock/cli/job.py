"""``penstock job``: Open Job Spec jobs: put them in, look, stop them, follow their lives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.exits import Exit, NotFound
from penstock.cli.inputs import body_of
from penstock.cli.options import configured
from penstock.cli.output import print_json, print_table, print_value, say, words_of
from penstock.cli.progress import batches
from penstock.cli.remote import on_ojs
from penstock.cli.root import COMMANDS, Group
from penstock.cli.task import timeout_option
from penstock.core.admin import Done, WorkView
from penstock.settings import Loaded

if TYPE_CHECKING:
    from penstock.protocols.ojs.admin import OjsAdmin
    from penstock.protocols.ojs.engine import Engine

__all__ = ["job"]

_BATCH = 100
_PAGE = 500

T = TypeVar("T")
_as_json = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
_state = click.option("--state", metavar="STATE", default="", help="Only jobs in this state.")
_type = click.option("--type", "job_type", metavar="TYPE", default="", help="Only this type.")


def _on_admin(loaded: Loaded, act: Callable[[OjsAdmin], Awaitable[T]]) -> T:
    async def work(engine: Engine) -> T:
        from penstock.protocols.ojs.admin import OjsAdmin

        return await act(OjsAdmin(engine))

    return on_ojs(loaded, work)


@click.group(cls=Group, short_help=COMMANDS["job"])
def job() -> None:
    """Open Job Spec jobs: enqueue, look, cancel, retry, follow."""


@job.command()
@click.argument("job_type", metavar="TYPE")
@click.argument("inputs", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--args", "text", metavar="JSON|@FILE|-", help="The arguments, as a JSON array.")
@click.option("--queue", metavar="NAME", help="The queue  [default].")
@click.option("--priority", type=int, help="From -100 to 100, higher first.")
@click.option("--at", "scheduled_at", metavar="TIME", help="Not before: RFC 3339, or +PT30S.")
@click.option("--expires", "expires_at", metavar="TIME", help="Not after: RFC 3339, or +PT30S.")
@click.option("--tries", type=int, help="How often it may be tried.")
@click.option("--id", "job_id", default="", help="An id of your own (UUIDv7).")
@click.option("--wait", is_flag=True, help="Wait for the result and print it.")
@timeout_option("5m", "How long to wait with --wait.")
@configured
def enqueue(
    loaded: Loaded,
    *,
    job_type: str,
    inputs: tuple[str, ...],
    text: str | None,
    tries: int | None,
    job_id: str,
    wait: bool,
    timeout: float,
    **given: Any,
) -> None:
    """Enqueue a job of TYPE and print its id (with --wait, its result)."""
    body = body_of(inputs, text)
    if text is not None and not isinstance(body, list):
        raise click.UsageError("--args wants a JSON array; key=value pairs make one object")
    options = {name: value for name, value in given.items() if value is not None}
    if tries is not None:
        options["retry"] = {"max_attempts": tries}

    async def act(engine: Engine) -> Any:
        from penstock.protocols.ojs.client import OjsClient

        client = OjsClient(engine)
        made = await client.enqueue(job_type, body, id=job_id, **options)
        say(f"enqueued {job_type} as {made.id}")
        return await made.result(timeout) if wait else made.id

    found = on_ojs(loaded, act)
    if wait:
        print_value(found)
    else:
        click.echo(found)


@job.command("ls")
@_type
@_state
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True)
@_as_json
@configured
def list_(loaded: Loaded, job_type: str, state: str, limit: int, as_json: bool) -> None:
    """List jobs, newest in their state first."""

    async def act(admin: OjsAdmin) -> tuple[Sequence[WorkView], bool]:
        page = await admin.find(name=job_type, state=state, limit=limit)
        return page.items, bool(page.cursor)

    found, more = _on_admin(loaded, act)
    if as_json:
        print_json(found)
        return
    rows = [(v.name, v.work_id, v.state, v.queue, v.attempt, v.at, v.error) for v in found]
    columns = ["type", "id", "state", "queue", "attempt", "since", "error"]
    print_table(columns, rows, empty="no jobs")
    if more:
        say(f"there are more than {limit}; see them with --limit")


@job.command()
@click.argument("job_id", metavar="ID")
@_as_json
@configured
def show(loaded: Loaded, job_id: str, as_json: bool) -> None:
    """Show one job with all that is known of it."""

    async def act(engine: Engine) -> Any:
        import msgspec

        from penstock.protocols.ojs.record import public_view
        from penstock.protocols.ojs.refusal import Refusal

        found = await engine.info(job_id)
        if isinstance(found, Refusal):
            raise _no_job(job_id)
        return msgspec.json.decode(public_view(found))

    found = on_ojs(loaded, act)
    if as_json:
        print_json(found)
    else:
        print_table(["", ""], [(key, words_of(value)) for key, value in found.items()], empty="")


@job.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@_type
@_state
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@configured
def cancel(loaded: Loaded, **chosen: Any) -> int:
    """Cancel jobs: those named, or with --type or --state all that fit."""
    return _act(loaded, "cancel", "cancelled", **chosen)


@job.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@_type
@_state
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@configured
def retry(loaded: Loaded, **chosen: Any) -> int:
    """Give discarded or cancelled jobs another life."""
    return _act(loaded, "retry", "retried", **chosen)


@job.command()
@click.argument("job_type", metavar="[TYPE]", default="")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="End after so many.")
@_as_json
@configured
def watch(loaded: Loaded, job_type: str, limit: int | None, as_json: bool) -> None:
    """Print jobs as they change, until Ctrl-C."""

    async def act(admin: OjsAdmin) -> None:
        say(f"watching {job_type or 'all jobs'}; Ctrl-C ends it")
        seen = 0
        async for view in admin.watch(name=job_type):
            if as_json:
                print_json(view)
            else:
                said = view.error or words_of(view.result)
                click.echo(
                    f"{words_of(view.at)}  {view.name}  {view.work_id}  {view.state}  {said}"
                )
            seen += 1
            if seen == limit:
                return

    _on_admin(loaded, act)


@job.command()
@click.argument("job_id", metavar="ID")
@_as_json
@configured
def logs(loaded: Loaded, job_id: str, as_json: bool) -> None:
    """Tell the life of a job: every event that is kept of it."""

    async def act(engine: Engine) -> Any:
        from penstock.protocols.ojs.eventlog import EventFilter
        from penstock.protocols.ojs.refusal import Refusal

        page = await engine.events.page(EventFilter(subject=job_id), limit=1000)
        if not page.events and isinstance(await engine.info(job_id), Refusal):
            raise _no_job(job_id)
        return page.events

    events = on_ojs(loaded, act)
    if as_json:
        print_json(events)
        return
    hidden = ("job_id", "job_type", "queue", "from", "n")
    rows = [
        (e.time, e.type, words_of({k: v for k, v in e.data.items() if k not in hidden}))
        for e in events
    ]
    print_table(["time", "event", ""], rows, empty="nothing is kept of this job")


# Helpers ------------------------------------------------------------------------------


def _act(
    loaded: Loaded,
    action: str,
    done: str,
    *,
    ids: tuple[str, ...],
    job_type: str,
    state: str,
    dry_run: bool,
) -> int:
    if ids and (job_type or state):
        raise click.UsageError("name jobs, or give --type and --state, not both")
    if not ids and not (job_type or state):
        raise click.UsageError("name jobs by id, or choose them with --type or --state")

    async def act(admin: OjsAdmin) -> Done | list[str]:
        chosen = list(ids) or await _found(admin, job_type, state or _STATES_OF[action])
        if dry_run:
            return chosen
        changed = 0
        refused: list[str] = []
        for some in batches(chosen, _BATCH, action):
            result = await admin.act(action, job_type, some)
            changed += result.changed
            refused += result.refused
        return Done(changed, tuple(refused))

    result = _on_admin(loaded, act)
    if isinstance(result, list):
        say(f"would be {done}: {len(result)}")
        for job_id in result:
            click.echo(job_id)
        return Exit.OK
    say(f"{done}: {result.changed}")
    for job_id in result.refused:
        say(f"not {done}: {job_id} (see `penstock job show {job_id}`)")
    return Exit.FAILED if result.refused else Exit.OK


_STATES_OF = {"cancel": "", "retry": "discarded"}
_OVER = ("completed", "cancelled", "discarded")


async def _found(admin: OjsAdmin, job_type: str, state: str) -> list[str]:
    """Ids of every job that fits; without a state, those that are not over."""
    found: list[str] = []
    cursor = ""
    while True:
        page = await admin.find(name=job_type, state=state, limit=_PAGE, cursor=cursor)
        found += [v.work_id for v in page.items if state or v.state not in _OVER]
        cursor = page.cursor
        if not cursor:
            return found


def _no_job(job_id: str) -> NotFound:
    return NotFound(f"there is no job {job_id}", remedy="see `penstock job ls`")
