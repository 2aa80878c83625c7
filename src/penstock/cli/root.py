"""The root command: names and one-line summaries, and nothing loaded until one is chosen."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Final

import click

from penstock.core.errors import nearest

__all__ = ["COMMANDS", "Group", "LazyGroup", "root"]

# The summaries stand here so that --help loads no command; a test compares them.
COMMANDS: Final = {
    "worker": "Run the handlers of an application.",
    "serve": "Run a job server that speaks HTTP.",
    "dev": "Run an application with a server of its own; reload on change.",
    "task": "List, call and enqueue tasks; read results.",
    "job": "Enqueue and follow Open Job Spec jobs.",
    "schedule": "Enqueue Open Job Spec jobs by the clock.",
    "queue": "Look at queues and their jobs; pause, retry, remove, repair.",
    "dlq": "Look at dead letters, replay or drop them.",
    "doctor": "Check what Penstock needs on this machine.",
    "config": "Show the settings and where they come from.",
    "version": "Show the versions of Penstock and what it stands on.",
    "completion": "Print the script that completes commands in a shell.",
}


class Group(click.Group):
    """A group that suggests the nearest command for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if not ctx.resilient_parsing and args[0] not in known and not args[0].startswith("-"):
            raise click.UsageError(unknown("command", args[0], known), ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A group whose commands live in modules of their name, imported when first asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's interface
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's interface
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"penstock.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's interface
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The sentence about a name that is not there, with the nearest that is."""
    near = nearest(name, known)
    return f"No such {kind} {name!r}." + (f" Did you mean {near!r}?" if near else "")


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from penstock import __version__

        click.echo(f"penstock {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 ok, 1 the work failed, 2 usage, 3 environment, 4 not found, "
    "5 timed out, 130 interrupted.",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Version."
)
def root() -> None:
    """Durable background work for Python on NATS JetStream."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a result may hold any text
