"""A stage for stories: handlers, a scripted wire, and a loop or a worker around them.

Nothing here waits for time to pass: `Cue` lets a test see that a handler has come to a line
and hold it there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from penstock.core.delivery import Source
from penstock.core.events import Event, EventKind
from penstock.core.registry import Registry
from penstock.core.task import Task
from penstock.runtime.jobloop import JobLoop
from penstock.runtime.offload import Offload
from penstock.runtime.report import Report
from penstock.runtime.ticker import Ticker, stopwatch
from penstock.runtime.workshop import Workshop
from tests.runtime.scripted import ScriptedSource, ScriptedWire

__all__ = ["Clock", "Cue", "Recorder", "a_shop", "eventually", "looping", "task", "tasks"]

PATIENCE_S = 30.0


class Clock:
    """The stopwatch, and a way to jump: what a frozen process sees when it wakes."""

    def __init__(self) -> None:
        self.jumped_s = 0.0

    def __call__(self) -> float:
        return stopwatch() + self.jumped_s


class Cue:
    """Where a handler says that it is there, and waits to go on. For the loop and for threads."""

    def __init__(self) -> None:
        self.reached = 0
        self._there = threading.Event()
        self._go = threading.Event()

    def here(self) -> None:
        """Called by a sync handler."""
        self._say()
        assert self._go.wait(PATIENCE_S)

    async def here_async(self) -> None:
        self._say()
        async with asyncio.timeout(PATIENCE_S):
            while not self._go.is_set():
                await asyncio.sleep(0.002)

    def go(self) -> None:
        self._go.set()

    async def is_reached(self, times: int = 1) -> None:
        await eventually(lambda: self.reached >= times)

    def _say(self) -> None:
        self.reached += 1
        self._there.set()


class Recorder:
    """The sink that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.flushed = 0
        self.dropped = 0

    def emit(self, event: Event) -> None:
        self.events.append(event)

    async def flush(self) -> None:
        self.flushed += 1

    def kinds(self, work_id: str = "") -> list[EventKind]:
        return [e.kind for e in self.events if not work_id or e.work_id == work_id]

    def the(self, kind: EventKind) -> Event:
        """The one event of this kind."""
        (event,) = [e for e in self.events if e.kind is kind]
        return event


async def eventually(true: Callable[[], Any], within_s: float = PATIENCE_S) -> None:
    """Wait until ``true()`` holds; for what has no condition to wait on."""
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.002)


def task(fn: Callable[..., Any], **options: Any) -> Task:
    return Registry().add(fn, **{"name": fn.__name__.strip("_"), **options})


def tasks(*declared: Callable[..., Any] | Task) -> dict[str, Task]:
    made = [one if isinstance(one, Task) else task(one) for one in declared]
    return {one.name: one for one in made}


def a_shop(*declared: Callable[..., Any] | Task, clock: Any = stopwatch, **more: Any) -> Workshop:
    """A workshop for these handlers, with few threads and processes."""
    sink = more.pop("sink", None)
    offload = Offload(more.pop("threads", 4), more.pop("processes", 1))
    return Workshop(
        tasks=tasks(*declared),
        offload=offload,
        report=Report(sink, worker_id="ann"),
        clock=clock,
        ticker=Ticker(clock),
        worker_id="ann",
        **more,
    )


@asynccontextmanager
async def looping(
    wire: ScriptedWire,
    *declared: Callable[..., Any] | Task,
    slots: int = 8,
    sources: list[Source] | None = None,
    shop: Workshop | None = None,
    **more: Any,
) -> AsyncIterator[JobLoop]:
    """A job loop that runs these handlers from ``wire``; stopped without grace at the end."""
    shop = shop or a_shop(*declared, **more)
    loop = JobLoop(
        sources if sources is not None else [ScriptedSource(wire)],
        shop,
        slots=slots,
        idle_wait=timedelta(seconds=1),
    )
    await loop.start()
    try:
        yield loop
    finally:
        loop.force()
        await loop.stop(timedelta(0))
        shop.offload.stop()
