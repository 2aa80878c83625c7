"""Progress of bulk actions: a bar on a terminal, nothing where programs read."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

from penstock.cli.output import console

__all__ = ["batches"]

T = TypeVar("T")


def batches(items: Sequence[T], size: int, what: str) -> Iterator[Sequence[T]]:
    """``items`` in slices; a bar on stderr shows how many were taken before each."""
    slices = [items[at : at + size] for at in range(0, len(items), size)]
    if not sys.stderr.isatty() or len(slices) < 2:
        yield from slices
        return
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=len(items))
        for some in slices:
            yield some
            bar.advance(task, len(some))
