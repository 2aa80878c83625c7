"""What commands print: data on stdout, talk on stderr; tables for people, JSON for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "print_json", "print_table", "print_value", "say", "styled", "words_of"]

_ROOM_PER_COLUMN = 12


def say(text: str) -> None:
    """Tell people something, on stderr."""
    click.echo(text, err=True)


def styled(text: str, *, fg: str, bold: bool = False) -> str:
    """``text`` in a colour, unless ``NO_COLOR`` is set. `click.echo` drops it where no terminal
    is."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=fg, bold=bold)


def console(*, stderr: bool = False) -> Console:
    """A rich console; colours only on a terminal, and never with ``NO_COLOR``."""
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=not (sys.stderr if stderr else sys.stdout).isatty())


def print_json(value: Any) -> None:
    """One line of JSON on stdout."""
    click.echo(msgspec.json.encode(value, enc_hook=str))


def print_value(value: Any) -> None:
    """A result: indented JSON on a terminal, one line of JSON elsewhere."""
    data = msgspec.json.encode(value, enc_hook=str)
    click.echo(msgspec.json.format(data, indent=2) if sys.stdout.isatty() else data)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """A table on stdout, or ``empty`` on stderr when there is nothing to show."""
    listed = [[words_of(cell) for cell in row] for row in rows]
    if not listed:
        say(empty)
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    out = console()
    if not sys.stdout.isatty():
        out.width = 200  # a pipe has no width; do not fold what a program reads
    elif out.width < _ROOM_PER_COLUMN * len(columns):
        _print_records(columns, listed)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(columns))
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in listed:
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)


def _print_records(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """One line for each cell, for a terminal too narrow for a table."""
    for row in rows:
        click.echo()
        for name, cell in zip(columns, row, strict=True):
            click.echo(f"{name}: {cell}" if name else cell)


def words_of(value: Any) -> str:
    """A value as people read it in a table."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case timedelta():
            return _length(value)
        case datetime():
            return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        case str() | int() | float():
            return str(value)
        case _:
            return msgspec.json.encode(value, enc_hook=str).decode()


def _length(value: timedelta) -> str:
    seconds = value.total_seconds()
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"
