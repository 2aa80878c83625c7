"""``penstock task``: what tasks there are, calling and enqueueing them, and what became of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from penstock.cli.exits import NotFound
from penstock.cli.inputs import body_of
from penstock.cli.options import configured
from penstock.cli.output import print_json, print_table, print_value, say, words_of
from penstock.cli.remote import on_client
from penstock.cli.root import COMMANDS, Group
from penstock.core.errors import PenstockError, TaskFailed, UnknownName, Waited
from penstock.settings import Loaded
from penstock.settings.shape import converted

if TYPE_CHECKING:
    from penstock.app import Client

__all__ = ["task", "timeout_option"]

Function = TypeVar("Function", bound=Callable[..., Any])


_input = click.option("--json", "text", metavar="JSON|@FILE|-", help="The whole input.")
_as_json = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")


def timeout_option(default: str, help: str) -> Callable[[Function], Function]:
    """``--timeout``, in seconds for the command."""
    return click.option(
        "--timeout",
        metavar="TIME",
        default=default,
        show_default=True,
        help=help,
        callback=_seconds,
    )


def _seconds(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """A length of time on the command line, in seconds; a plain number is seconds already."""
    try:
        return converted(value, timedelta, lax=True).total_seconds()  # type: ignore[no-any-return]
    except PenstockError as error:
        raise click.BadParameter(f"{error.message}; {error.remedy}", ctx, param) from error
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


@click.group(cls=Group, short_help=COMMANDS["task"])
def task() -> None:
    """List, call and enqueue tasks; read results.

    Input is given as key=value (JSON where it parses, else text), key:=JSON, --json, or - for
    stdin.
    """


@task.command("ls")
@_as_json
@configured
def list_(loaded: Loaded, as_json: bool) -> None:
    """List the tasks that workers have announced."""
    tasks = on_client(loaded, lambda client: client.tasks())
    listed = sorted(tasks.values(), key=lambda one: one.id)
    if as_json:
        print_json(listed)
        return
    rows = [(one.id, one.type, one.subject, _fields(one.input_schema)) for one in listed]
    print_table(["task", "type", "subject", "input"], rows, empty="no worker has announced a task")


@task.command()
@click.argument("name")
@_as_json
@configured
def show(loaded: Loaded, name: str, as_json: bool) -> None:
    """Show one task with its schemas."""
    tasks = on_client(loaded, lambda client: client.tasks())
    if name not in tasks:
        raise UnknownName("task", name, tasks)
    found = msgspec.to_builtins(tasks[name])
    if as_json:
        print_json(found)
    else:
        print_table(["", ""], [(key, words_of(value)) for key, value in found.items()], empty="")


@task.command()
@click.argument("name")
@click.argument("inputs", nargs=-1, metavar="[KEY=VALUE]...")
@_input
@timeout_option("30s", "How long to wait for the answer.")
@configured
def call(
    loaded: Loaded, name: str, inputs: tuple[str, ...], text: str | None, timeout: float
) -> None:
    """Call a task that replies, and print its answer."""
    body = body_of(inputs, text)

    print_value(_answer(loaded, lambda client: client.call(name, body, timeout=timeout)))


@task.command()
@click.argument("name")
@click.argument("inputs", nargs=-1, metavar="[KEY=VALUE]...")
@_input
@click.option("--run-id", help="A run id of your own: a second one of that name changes nothing.")
@click.option("--drop-result", is_flag=True, help="Keep no result on success.")
@click.option("--force", is_flag=True, help="Even if no worker has announced the task yet.")
@click.option("--wait", is_flag=True, help="Wait for the result and print it.")
@timeout_option("5m", "How long to wait with --wait.")
@configured
def enqueue(
    loaded: Loaded,
    *,
    name: str,
    inputs: tuple[str, ...],
    text: str | None,
    run_id: str | None,
    drop_result: bool,
    force: bool,
    wait: bool,
    timeout: float,
) -> None:
    """Enqueue a task, and print its run id (with --wait, its result)."""
    if wait and drop_result:
        raise click.UsageError("--wait needs the result that --drop-result would drop")
    if run_id == "":
        raise click.UsageError("--run-id is empty; leave it out to have one made")
    body = body_of(inputs, text)

    async def act(client: Client) -> Any:
        if not force:
            await _must_take_jobs(client, name)
        run = await client.enqueue(name, body, run_id=run_id, drop_result=drop_result)
        say(f"enqueued {name} as {run.run_id}{' (it was there already)' if run.duplicate else ''}")
        return await run.result(timeout) if wait else run.run_id

    found = _answer(loaded, act)
    if wait:
        print_value(found)
    else:
        click.echo(found)


@task.command()
@click.argument("name")
@click.argument("run_id")
@timeout_option("0s", "How long to wait for a result that is not there yet.")
@configured
def result(loaded: Loaded, name: str, run_id: str, timeout: float) -> None:
    """Print the result of a run; exit code 5 while it has none."""

    async def act(client: Client) -> Any:
        if not timeout:
            await _must_be_over(client, name, run_id)
        return await client.result(name, run_id, timeout or None)

    print_value(_answer(loaded, act))


@task.command()
@click.argument("name", default="")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="End after so many.")
@_as_json
@configured
def watch(loaded: Loaded, name: str, limit: int | None, as_json: bool) -> None:
    """Print runs as they change, until Ctrl-C."""

    async def act(client: Client) -> None:
        say(f"watching {name or 'all tasks'}; Ctrl-C ends it")
        seen = 0
        async for view in client.watch(name):
            if as_json:
                print_json(view)
            else:
                when = words_of(view.at)
                click.echo(f"{when}  {view.name}  {view.work_id}  {view.state}  {_outcome(view)}")
            seen += 1
            if seen == limit:
                return

    on_client(loaded, act)


def _answer(loaded: Loaded, act: Callable[[Client], Awaitable[Any]]) -> Any:
    """What ``act`` answers. The data that came with a task's error is printed, too."""
    try:
        return on_client(loaded, act)
    except TaskFailed as error:
        if error.data is not None:
            print_value(error.data)
        raise


async def _must_take_jobs(client: Client, name: str) -> None:
    """Refuse a task that nobody announced, or that only answers calls, before anything is sent."""
    tasks = await client.tasks()
    if name not in tasks:
        raise UnknownName("task", name, tasks)
    if tasks[name].type != "async":
        raise click.UsageError(
            f"{name!r} answers calls and takes no jobs; use `penstock task call`"
        )


async def _must_be_over(client: Client, name: str, run_id: str) -> None:
    record = await client.status(name, run_id)
    if record is None:
        raise NotFound(
            f"there is no record of {name} {run_id}",
            remedy="it waits to start, was dropped, or never was; --timeout 30s waits for it.",
        )
    if not record.is_final:
        raise Waited(f"{name} {run_id} still runs", remedy="wait for it with --timeout 30s")


def _outcome(view: Any) -> str:
    return view.error or words_of(view.result)


def _fields(schema: str | None) -> str:
    """The names of an input's fields, those that may be left out in brackets."""
    try:
        said = msgspec.json.decode(schema or "{}")
        needed = set(said.get("required", ()))
        return " ".join(n if n in needed else f"[{n}]" for n in said.get("properties", {}))
    except (msgspec.DecodeError, AttributeError, TypeError):
        return ""
