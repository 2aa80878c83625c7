"""What is told to the world: events in the envelope of the Open Job Spec.

Job events are derived from the steps on a record, so that whoever publishes them, and however
often, their ids are the same; see `penstock.protocols.ojs.projector`. Events of queues, workers,
workflows and crons are told by whoever caused them, without waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.broker.errors import LinkError
from penstock.core.ids import uuid7
from penstock.protocols.ojs.instants import instant_text, of_ms
from penstock.protocols.ojs.names import event_subject, fixed_id
from penstock.protocols.ojs.record import Record, Step
from penstock.protocols.ojs.shared import Shared

__all__ = ["Event", "Told", "events_of"]

_log = logging.getLogger("penstock.ojs")


class Event(Struct, frozen=True, kw_only=True):
    """One event as everybody sees it."""

    specversion: str = "1.0"
    id: str
    type: str
    source: str
    time: str
    subject: str
    data: dict[str, Any]


_SCHEDULER: Final = frozenset({"promoted", "expired", "lapsed"})


def events_of(record: Record, after_n: int) -> Iterator[Event]:
    """The events of every step of ``record`` beyond ``after_n`` that is still known, in order."""
    for step in record.tail:
        if step.n > after_n:
            for number, (kind, data) in enumerate(_of_step(record, step)):
                yield _event(record, step, number, kind, data)


class Told:
    """Publishes events of this instance that are not derived from a record."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def tell(self, kind: str, subject: str, data: dict[str, Any], source: str = "api") -> None:
        """Publish without waiting; an event that cannot be sent is dropped, the deed stands."""
        shared = self._shared
        if not shared.options.events:
            return
        event = Event(
            id=f"evt_{uuid7()}",
            type=kind,
            source=f"ojs://penstock/{source}/{shared.name}",
            time=instant_text(shared.clock()),
            subject=subject,
            data=data,
        )
        try:
            shared.room.publisher.send(event_subject(kind).encode(), msgspec.json.encode(event))
        except LinkError as error:
            _log.debug("event %s was not sent: %s", kind, error.message)

    def cron_triggered(self, name: str, expression: str, record: Record, count: int) -> None:
        data = {
            "cron_name": name,
            "cron_expr": expression,
            "job_type": record.job.type,
            "job_id": record.id,
            "queue": record.job.queue,
            "scheduled_at": instant_text(of_ms(record.member.nominal_ms if record.member else 0)),
            "run_count": count,
        }
        self.tell("cron.triggered", name, data, "cron")

    def cron_skipped(self, name: str, expression: str, reason: str, existing: str) -> None:
        data = {"cron_name": name, "cron_expr": expression, "reason": reason}
        if existing:
            data["existing_job_id"] = existing
        self.tell("cron.skipped", name, data, "cron")


def _of_step(record: Record, step: Step) -> list[tuple[str, dict[str, Any]]]:
    """Which events a step is, with what they say beyond the job's own facts."""
    detail = step.detail
    error: dict[str, Any] = {k: detail[k] for k in ("code", "message", "retryable") if k in detail}
    if step.kind in ("retrying", "lapsed", "discarded", "dropped"):
        return _of_failure(record, step, error)
    match step.kind:
        case "enqueued" | "promoted" | "activated" | "redriven" | "returned":
            data: dict[str, Any] = {"priority": record.job.priority}
            return [("job.scheduled" if _delayed(record, step) else "job.enqueued", data)]
        case "scheduled" | "rescheduled":
            return [("job.scheduled", {"scheduled_at": record.job.scheduled_at})]
        case "started":
            return [("job.started", {"worker_id": step.worker, "attempt": step.attempt})]
        case "completed":
            done = {"attempt": step.attempt, "duration_ms": detail.get("duration_ms", 0)}
            return [("job.completed", done)]
        case "expired":
            ttl = {"created_at": record.job.created_at, "expired_at": record.job.expires_at}
            return [("job.expired", ttl)]
        case "cancelled":
            return [("job.cancelled", dict(detail))]
        case "prioritised":
            return [("priority.changed", {"priority": record.job.priority})]
        case _:
            return []


def _of_failure(
    record: Record, step: Step, error: dict[str, Any]
) -> list[tuple[str, dict[str, Any]]]:
    """An attempt that did not succeed, and what comes of it."""
    attempt = step.attempt
    failed = ("job.failed", {"attempt": attempt, "error": error, **_took(step.detail)})
    tries = {"attempt": attempt, "max_attempts": record.job.max_attempts, "error": error}
    if step.kind == "retrying":
        return [failed, ("job.retrying", {**tries, "next_retry_at": record.job.next_attempt_at})]
    if step.kind == "lapsed":
        again = {**tries, "next_retry_at": instant_text(of_ms(step.at_ms))}
        ready = {"priority": record.job.priority}
        return [failed, ("job.retrying", again), ("job.enqueued", ready)]
    found = [failed] if step.came_from == "active" else []
    found.append(("job.discarded", {"total_attempts": attempt, "last_error": error}))
    if record.dead_letter:
        found.append(("dead_letter.added", {"error": error}))
    return found


def _delayed(record: Record, step: Step) -> bool:
    """Whether a job that was given back waits for its time."""
    return step.kind == "returned" and record.n == step.n and record.state == "scheduled"


def _took(detail: dict[str, Any]) -> dict[str, Any]:
    return {"duration_ms": detail["duration_ms"]} if "duration_ms" in detail else {}


def _event(record: Record, step: Step, number: int, kind: str, data: dict[str, Any]) -> Event:
    job = record.job
    facts: dict[str, Any] = {"job_id": job.id, "job_type": job.type, "queue": job.queue}
    if (trace := _trace_of(record)) is not None:
        facts["trace_id"] = trace
    part = "scheduler" if step.kind in _SCHEDULER else "workers" if step.worker else "api"
    return Event(
        id=f"evt_{fixed_id(step.at_ms, 'event', job.id, str(step.n), str(number))}",
        type=kind,
        source=f"ojs://penstock/{part}/{job.id}",
        time=instant_text(of_ms(step.at_ms)),
        subject=job.id,
        data={**facts, **data, "from": step.came_from, "n": step.n},
    )


def _trace_of(record: Record) -> str | None:
    meta = bytes(record.job.meta)
    if b'"trace' not in meta:
        return None
    known = msgspec.json.decode(meta)
    trace = known.get("trace_id")
    if isinstance(trace, str):
        return trace
    parent = known.get("traceparent")
    parts = parent.split("-") if isinstance(parent, str) else []
    return parts[1] if len(parts) > 1 else None
