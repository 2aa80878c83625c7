"""The reference of events and metrics names all there are, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import fields

from penstock.core.events import Event, EventKind
from penstock.core.outcome import Done
from penstock.runtime.options import WorkerOptions
from penstock.runtime.worker import Worker
from tests.runtime.stage import tasks

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "events.md").read_text()


def first_cells(header: str) -> set[str]:
    """The words in backticks of the first column, of the table with this header."""
    table = PAGE.partition(f"| {header} |")[2].partition("\n\n")[0]
    cells = (line.split("|")[1] for line in table.splitlines()[2:])
    return {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}


def test_every_kind_is_described() -> None:
    assert first_cells("kind") == {kind.value for kind in EventKind}


def test_every_field_is_described() -> None:
    assert first_cells("field") == {field.name for field in fields(Event)}


async def test_every_metric_is_described() -> None:
    async def quick() -> None: ...

    worker = Worker(tasks(quick), options=WorkerOptions(signals=False))
    await worker.start()
    worker.metrics.ran("natq", "quick", Done.__name__, 0.1)
    text = worker.metrics.render().decode()
    await worker.stop()

    assert first_cells("metric") == set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
