"""The workshop: what every run of one worker shares, and each task prepared for running.

Preparing a task once (its binding, where it runs, its limit in seconds) is what keeps the
cost of a single run small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import Any, Protocol

from penstock.core.context import Backchannel
from penstock.core.errors import UnknownName
from penstock.core.ids import uuid7
from penstock.core.task import RunsIn, Task
from penstock.runtime.observe.traces import Tracer
from penstock.runtime.report import Report
from penstock.runtime.ticker import Ticker, stopwatch

__all__ = ["Call", "Offloader", "Plan", "Workshop"]


@dataclass(frozen=True, slots=True)
class Plan:
    """One task, ready to run."""

    timeout: timedelta | None
    fn: Callable[..., Any]
    bind: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]
    encode: Callable[[Any], Any]
    runs_in: RunsIn
    in_loop: bool
    wants_context: bool
    timeout_s: float

    @classmethod
    def of_nothing(cls) -> Plan:
        """For work whose end is known before it starts: an unknown task, a worker that stops."""
        return cls(None, _never, _never, _never, RunsIn.LOOP, True, False, inf)

    @classmethod
    def of(cls, task: Task) -> Plan:
        return cls(
            timeout=task.timeout,
            fn=task.fn,
            bind=task.binding.bind,
            encode=task.binding.encode_result,
            runs_in=task.runs_in,
            in_loop=task.runs_in is RunsIn.LOOP,
            wants_context=task.binding.context_parameter is not None,
            timeout_s=inf if task.timeout is None else task.timeout.total_seconds(),
        )


def _never(*_: Any) -> Any:
    raise AssertionError("this plan is not to be run")


class Call(Protocol):
    """A handler that runs outside the loop, in a thread or another process.

    ``on_start`` is called only where it had to wait for a free thread (``queued``).
    """

    queued: bool
    ended: bool
    on_start: Callable[[], None] | None
    on_end: Callable[[], None] | None

    async def wait(self) -> Any:
        """What the handler returned; raises what it raised. Cancelling stops the wait only."""
        ...

    def abandon(self) -> None:
        """Its result is not wanted any more: a process is killed, a thread cannot be."""
        ...


class Offloader(Protocol):
    def room(self, runs_in: RunsIn) -> int | None:
        """How many handlers may run there at once; ``None``: as many as like."""
        ...

    def call(
        self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], back: Backchannel
    ) -> Call:
        """Run the handler elsewhere: `Call.wait` gives its value or its `Outcome`."""
        ...

    def stop(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class Workshop:
    """Shared by the loops of one worker; made once, before any of them starts."""

    tasks: Mapping[str, Task]
    offload: Offloader
    report: Report = field(default_factory=Report)
    clock: Callable[[], float] = stopwatch
    worker_id: str = field(default_factory=uuid7)
    ticker: Ticker = field(default_factory=Ticker)
    tracer: Tracer | None = None
    settle_within_s: float = 60.0
    _plans: dict[str, Plan] = field(default_factory=dict)

    def plan(self, name: str) -> Plan:
        """The task called ``name``, prepared. Raises `UnknownName` for one this worker has not."""
        known = self._plans.get(name)
        if known is None:
            task = self.tasks.get(name)
            if task is None:
                raise UnknownName("task", name, self.tasks)
            known = self._plans[name] = Plan.of(task)
        return known
