"""``penstock version``: what to write in a bug report."""

from __future__ import annotations

import platform
from importlib import metadata

import click

import penstock
from penstock.cli.output import print_json, print_table
from penstock.cli.root import COMMANDS
from penstock.core.errors import PenstockError

__all__ = ["version"]

_STANDS_ON = ("nats-py", "msgspec", "uvloop", "click", "rich", "redis", "pyspark")


@click.command(short_help=COMMANDS["version"])
@click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
def version(as_json: bool) -> None:
    """Show the versions of Penstock and what it stands on."""
    found = {
        "penstock": penstock.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "nats-server": _nats_server(),
        **{name: _installed(name) for name in _STANDS_ON},
    }
    if as_json:
        print_json(found)
    else:
        print_table(
            ["what", "version"], [(k, v or "not installed") for k, v in found.items()], empty=""
        )


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _nats_server() -> str | None:
    from penstock.broker.binary import find_nats_server, version_of

    try:
        return version_of(find_nats_server())
    except PenstockError:
        return None
