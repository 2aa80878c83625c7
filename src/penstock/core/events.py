"""Lifecycle events: one public record of what happened, the same for all protocols.

Events are advisory: published without waiting, never slowing or breaking the work. The
truth is in each protocol's own records; events add timing and workers. Their names and
fields are a public promise (docs/reference/events.md, tested).
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from penstock.core.ids import uuid7
from penstock.core.invocation import ProtocolName

__all__ = ["STREAM", "SUBJECTS", "Event", "EventKind", "EventSink", "Silent", "now_utc"]

STREAM = "PENSTOCK_EVENTS"
SUBJECTS = "penstock.event.>"


class EventKind(StrEnum):
    ENQUEUED = "enqueued"
    STARTED = "started"
    PROGRESSED = "progressed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRIED = "retried"
    REJECTED = "rejected"
    SNOOZED = "snoozed"
    CONTINUED = "continued"
    RETURNED = "returned"
    CANCELLED = "cancelled"
    LOST = "lost"
    EXPIRED = "expired"
    DEAD_LETTERED = "dead_lettered"
    WORKER_STARTED = "worker_started"
    WORKER_STOPPED = "worker_stopped"
    WORKER_UNHEALTHY = "worker_unhealthy"


def now_utc() -> datetime:
    return datetime.now(UTC)


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened to one piece of work (or to a worker).

    ``wait_ms``: from enqueue to start; ``run_ms``: in the handler; ``next_at``: when it
    will be tried again. ``error_code``/``error`` only on failures.
    """

    id: str = ""
    kind: EventKind
    protocol: ProtocolName
    name: str
    work_id: str
    at: datetime
    attempt: int = 1
    delivery: int = 1
    queue: str = ""
    worker: str = ""
    wait_ms: float | None = None
    run_ms: float | None = None
    next_at: datetime | None = None
    error_code: str = ""
    error: str = ""
    done: float | None = None
    total: float | None = None
    note: str = ""
    trace: str = ""

    @property
    def subject(self) -> str:
        return f"penstock.event.{self.protocol}.{self.kind.value}"

    @classmethod
    def new_id(cls) -> str:
        return uuid7()


class EventSink(Protocol):
    """Where events go. ``emit`` never waits and never raises; ``dropped`` counts what it lost."""

    @property
    def dropped(self) -> int: ...

    def emit(self, event: Event) -> None: ...

    async def flush(self) -> None:
        """Return when everything emitted so far has arrived, or the sink gave up on it."""
        ...


class Silent:
    """The sink that keeps nothing."""

    dropped = 0

    def emit(self, event: Event) -> None:  # noqa: ARG002 - keeping nothing is its job
        return

    async def flush(self) -> None:
        return
