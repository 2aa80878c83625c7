"""The report: every start and end of a run, told once to events and metrics.

Cheap calls that never wait and never raise. With the silent sink no event is even built.
"""

from __future__ import annotations

import logging
from datetime import datetime

from penstock.core.delivery import Gone, Progress, Settled, SettledKind, Settlement, Unknown
from penstock.core.events import Event, EventKind, EventSink, Silent, now_utc
from penstock.core.invocation import Invocation, ProtocolName
from penstock.core.outcome import (
    Cancelled,
    Continued,
    Done,
    Failed,
    Interrupted,
    Lost,
    Outcome,
    Snoozed,
    Word,
)
from penstock.runtime.observe.metrics import Metrics

__all__ = ["Report", "kind_of"]

_log = logging.getLogger("penstock.runtime")

_KIND_OF_SETTLED = {
    SettledKind.SUCCEEDED: EventKind.SUCCEEDED,
    SettledKind.RETRYING: EventKind.RETRIED,
    SettledKind.SNOOZED: EventKind.SNOOZED,
    SettledKind.RETURNED: EventKind.RETURNED,
    SettledKind.CONTINUED: EventKind.CONTINUED,
    SettledKind.CANCELLED: EventKind.CANCELLED,
}


class Report:
    """Where the loops tell what happened."""

    def __init__(
        self, sink: EventSink | None = None, metrics: Metrics | None = None, worker_id: str = ""
    ) -> None:
        self.sink: EventSink = sink or Silent()
        self.metrics = metrics or Metrics()
        self._worker_id = worker_id
        self._silent = isinstance(self.sink, Silent)

    def started(self, invocation: Invocation) -> None:
        if not self._silent:
            now = now_utc()
            self._emit(EventKind.STARTED, invocation, now, wait_ms=_wait_ms(invocation, now))

    def progressed(self, invocation: Invocation, progress: Progress) -> None:
        if not self._silent:
            self._emit(
                EventKind.PROGRESSED,
                invocation,
                now_utc(),
                done=progress.done,
                total=progress.total,
                note=progress.note,
            )

    def ended(
        self, invocation: Invocation, outcome: Outcome, settlement: Settlement | None, run_s: float
    ) -> None:
        """One run is over. ``settlement`` is ``None`` for requests, which are only answered."""
        kind = kind_of(outcome, settlement)
        self.metrics.ran(invocation.protocol, invocation.task, kind, run_s)
        if self._silent:
            return
        next_at = settlement.next_at if isinstance(settlement, Settled) else None
        note = f"settling: {settlement.reason}" if isinstance(settlement, Unknown) else ""
        if isinstance(outcome, Failed):
            code, said = outcome.failure.code, outcome.failure.message
        else:
            code, said = "", getattr(outcome, "reason", "")
        self._emit(
            kind,
            invocation,
            now_utc(),
            run_ms=run_s * 1000,
            next_at=next_at,
            error_code=code,
            error=said,
            note=note,
        )
        if isinstance(settlement, Settled) and settlement.dead_lettered:
            self._emit(EventKind.DEAD_LETTERED, invocation, now_utc(), error_code=code, error=said)

    def of_worker(self, kind: EventKind, protocol: ProtocolName, note: str = "") -> None:
        """Something happened to the worker itself."""
        if not self._silent:
            event = Event(
                id=Event.new_id(),
                kind=kind,
                protocol=protocol,
                name="worker",
                work_id=self._worker_id,
                at=now_utc(),
                worker=self._worker_id,
                note=note,
            )
            self._tell(event)

    def _emit(self, kind: EventKind, of: Invocation, at: datetime, **facts: object) -> None:
        event = Event(
            id=Event.new_id(),
            kind=kind,
            protocol=of.protocol,
            name=of.task,
            work_id=of.work_id,
            at=at,
            attempt=of.attempt,
            delivery=of.delivery,
            queue=of.queue,
            worker=self._worker_id,
            trace=of.trace,
            **facts,  # type: ignore[arg-type] # named in the calls above
        )
        self._tell(event)

    def _tell(self, event: Event) -> None:
        try:
            self.sink.emit(event)
        except Exception:  # noqa: BLE001 - telling must never break the work
            _log.warning("an event was lost", exc_info=True, extra={"workerId": self._worker_id})


def kind_of(outcome: Outcome, settlement: Settlement | None) -> EventKind:
    """The event that tells how a run ended; what the store says counts more than what we meant."""
    if isinstance(settlement, Gone):
        return EventKind.LOST
    if isinstance(settlement, Settled) and settlement.kind is not SettledKind.PARKED:
        return _KIND_OF_SETTLED[settlement.kind]
    match outcome:
        case Done():
            return EventKind.SUCCEEDED
        case Failed(verdict=Word.NEVER):
            return EventKind.REJECTED
        case Failed():
            return EventKind.FAILED
        case Snoozed():
            return EventKind.SNOOZED
        case Continued():
            return EventKind.CONTINUED
        case Interrupted():
            return EventKind.RETURNED
        case Cancelled():
            return EventKind.CANCELLED
        case Lost():
            return EventKind.LOST


def _wait_ms(invocation: Invocation, now: datetime) -> float | None:
    if invocation.enqueued_at is None:
        return None
    return max((now - invocation.enqueued_at).total_seconds() * 1000, 0.0)
