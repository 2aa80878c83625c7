"""Context: what a handler may ask and tell while it runs.

Ask for it by annotating a parameter with `Context`; it works the same in async handlers,
threads and processes, on every protocol. The runtime supplies the `Backchannel`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, MutableMapping
from datetime import datetime, timedelta
from typing import Any, Protocol

from penstock.core.delivery import Progress
from penstock.core.events import now_utc
from penstock.core.invocation import Invocation

__all__ = ["Backchannel", "Context", "LeaseLost", "TaskLog"]

_log = logging.getLogger("penstock.task")


class LeaseLost(Exception):
    """The work was cancelled or belongs to another worker now: stop, and write nothing."""


class Backchannel(Protocol):
    """How a context reaches the runtime that runs its handler."""

    @property
    def stopped(self) -> str:
        """Why the handler should stop (lease lost, cancelled, shutdown), or empty."""
        ...

    @property
    def worker_id(self) -> str: ...

    def note(self, progress: Progress) -> None: ...

    def save(self, value: Any) -> Awaitable[None]:
        """Keep a checkpoint. From a thread or process it has been kept on return."""
        ...


class TaskLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that puts ``workerId``, ``taskId`` and ``runId`` on every line."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        extra = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, {**kwargs, "extra": extra}


class Context:
    """The work in hand: its ids and counts, its deadline, its checkpoint, and ways to report."""

    __slots__ = ("_back", "_log", "invocation")

    def __init__(self, invocation: Invocation, back: Backchannel) -> None:
        self.invocation = invocation
        self._back = back
        self._log: TaskLog | None = None

    # What this is -------------------------------------------------------------------

    @property
    def task(self) -> str:
        return self.invocation.task

    @property
    def run_id(self) -> str:
        """Stable over all attempts: the run, job, task or command id of the wire."""
        return self.invocation.work_id

    @property
    def protocol(self) -> str:
        return self.invocation.protocol

    @property
    def worker_id(self) -> str:
        return self._back.worker_id

    @property
    def attempt(self) -> int:
        """Which execution this is, from 1; give-backs and snoozes do not count."""
        return self.invocation.attempt

    @property
    def delivery(self) -> int:
        """How often this work was handed out, from 1. Above `attempt` after interruptions."""
        return self.invocation.delivery

    @property
    def max_attempts(self) -> int | None:
        return self.invocation.max_attempts

    @property
    def iteration(self) -> int:
        return self.invocation.iteration

    @property
    def parent_results(self) -> tuple[Any, ...]:
        return self.invocation.parent_results

    @property
    def meta(self) -> Mapping[str, Any]:
        return self.invocation.meta

    @property
    def trace(self) -> str:
        """The ``traceparent`` that came with the work, or empty."""
        return self.invocation.trace

    @property
    def wire(self) -> Any:
        """The protocol's own message, typed by its ``wire.py``."""
        return self.invocation.wire

    # Time ---------------------------------------------------------------------------

    @property
    def deadline_at(self) -> datetime | None:
        return self.invocation.deadline_at

    def remaining(self) -> timedelta | None:
        """How long until the deadline (zero when past), or ``None`` without one."""
        if self.invocation.deadline_at is None:
            return None
        return max(self.invocation.deadline_at - now_utc(), timedelta(0))

    # Stop signals -------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """True once this run should stop. Async handlers are also cancelled."""
        return bool(self._back.stopped)

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` if this run should stop; for loops in sync handlers."""
        if reason := self._back.stopped:
            raise LeaseLost(reason)

    # Reporting ----------------------------------------------------------------------

    def progress(
        self, done: float | None = None, total: float | None = None, note: str = ""
    ) -> None:
        """Report how far this is. Cheap, never waits, never fails."""
        self._back.note(Progress(done, total, note))

    def checkpoint(self, value: Any) -> Awaitable[None]:
        """Keep ``value`` so that the next attempt finds it in `saved`.

        Async handlers await it; in sync handlers it has been kept when the call returns.
        """
        return self._back.save(value)

    @property
    def saved(self) -> Any:
        """What an earlier attempt kept with `checkpoint`, `Snooze` or `Continue`, or ``None``."""
        kept = self.invocation.checkpoint
        return None if kept is None else kept.value

    @property
    def log(self) -> TaskLog:
        """A logger with the ids of this run on every line."""
        if self._log is None:
            ids = {"workerId": self.worker_id, "taskId": self.task, "runId": self.run_id}
            self._log = TaskLog(_log, ids)
        return self._log
