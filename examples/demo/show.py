"""What the audience sees: bars on a terminal, plain lines elsewhere, and the closing table."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.demo.act import Proof

__all__ = ["Bars", "Show"]

_WIDTH_OF_PIPES = 120
_ROOMY = 96
_PLAIN_STEP = 0.2  # without a terminal, one line per fifth of the way


class Bars(Protocol):
    """One bar for each kind of work."""

    def at(self, kind: str, done: float) -> None: ...


class Show:
    """Talks to people: on stderr while it runs, the table on stdout."""

    def __init__(self, *, plain: bool = False) -> None:
        self._began = time.monotonic()
        self._fancy = sys.stderr.isatty() and not plain
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)
        self._out = Console(highlight=False)
        if not sys.stdout.isatty():
            self._out.width = _WIDTH_OF_PIPES

    def say(self, text: str) -> None:
        took = time.monotonic() - self._began
        self._err.print(f"[dim][{took:6.1f} s][/dim] ", end="")
        self._err.print(text, markup=False)

    def title(self, text: str) -> None:
        self._err.print(f"\n[bold]{text}[/bold]")

    @contextmanager
    def bars(self, totals: Mapping[str, float]) -> Iterator[Bars]:
        """Bars that go from 0 to their total; lines said meanwhile appear above them."""
        if not self._fancy:
            yield _Lines(self, totals)
            return
        columns = (TextColumn("{task.description:>12}"), BarColumn(40), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=self._err) as progress:
            yield _RichBars(progress, totals)

    def proof(self, title: str, proof: Proof) -> None:
        """The table: what had to come out, and what the records say did."""
        stories = self._out.width >= _ROOMY
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("work", no_wrap=True)
        if stories:
            table.add_column("what happens to it", no_wrap=True)
        for name in ("sent", "again"):
            table.add_column(name, justify="right", no_wrap=True)
        for name in ("expected", "found", ""):
            table.add_column(name, no_wrap=True)
        for row in proof.rows:
            verdict = "[green]ok[/green]" if row.holds else "[red bold]WRONG[/red bold]"
            again = str(row.again or "")
            story = [row.story] if stories else []
            table.add_row(row.kind, *story, str(row.sent), again, row.expected, row.found, verdict)
        self._out.print()
        self._out.print(table)
        for note in proof.notes:
            self._out.print(f"  {note}", markup=False)


class _RichBars:
    def __init__(self, progress: Progress, totals: Mapping[str, float]) -> None:
        self._progress = progress
        self._ids = {kind: progress.add_task(kind, total=total) for kind, total in totals.items()}

    def at(self, kind: str, done: float) -> None:
        self._progress.update(self._ids[kind], completed=done)


class _Lines:
    def __init__(self, show: Show, totals: Mapping[str, float]) -> None:
        self._show = show
        self._totals = totals
        self._done = dict.fromkeys(totals, 0.0)
        self._told = 0.0

    def at(self, kind: str, done: float) -> None:
        self._done[kind] = done
        share = sum(self._done.values()) / max(sum(self._totals.values()), 1)
        if share >= self._told + _PLAIN_STEP:
            self._told = share - share % _PLAIN_STEP
            self._show.say(f"{share:4.0%} done")
