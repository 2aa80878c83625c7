"""``penstock config``: the settings as they will be used, each with where it comes from."""

from __future__ import annotations

import click

from penstock.cli.options import configured
from penstock.cli.output import print_json, print_table, say, words_of
from penstock.cli.root import COMMANDS, Group
from penstock.settings import Loaded

__all__ = ["config"]


@click.group(cls=Group, short_help=COMMANDS["config"])
def config() -> None:
    """Show the settings and where they come from."""


@config.command()
@click.option("--origin", is_flag=True, help="Where each value comes from.")
@click.option("--changed", is_flag=True, help="Only what is not default.")
@click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
@configured
def show(loaded: Loaded, origin: bool, changed: bool, as_json: bool) -> None:
    """Show every setting. Secrets are masked."""
    rows = [row for row in loaded.rows() if not changed or row[2] != "default"]
    if as_json:
        print_json(
            {
                name: {"value": value if _plain(value) else words_of(value)}
                | ({"origin": where} if origin else {})
                for name, value, where in rows
            }
        )
    else:
        columns = ["setting", "value", *(["origin"] if origin else [])]
        print_table(columns, [row[: len(columns)] for row in rows], empty="all is default")
    for variable in loaded.ignored:
        say(f"note: nobody reads the variable {variable}")


def _plain(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool, list))
