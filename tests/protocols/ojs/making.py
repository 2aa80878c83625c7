"""Records, submissions and requests for tests, made the way the server makes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec
from msgspec import Raw

from penstock.core.ids import uuid7
from penstock.protocols.ojs import rules
from penstock.protocols.ojs.arrival import enqueue
from penstock.protocols.ojs.envelope import Submission, parse_submission
from penstock.protocols.ojs.fields import object_of
from penstock.protocols.ojs.options import Limits, OjsOptions
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal
from penstock.protocols.ojs.requests import AckRequest, ErrorGiven, Holding, NackRequest

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
OPTIONS = OjsOptions()
SECOND = timedelta(seconds=1)
EXACT: dict[str, Any] = {"jitter": False}


def dice() -> Random:
    return Random(7)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def a_submission(job_type: str = "mail.send", *, now: datetime = NOW, **options: Any) -> Submission:
    """What a client asks for; ``args``, ``meta``, ``id`` and unknown members stand at the top."""
    top = {k: options.pop(k) for k in ("args", "meta", "id", "x_note") if k in options}
    body = {"type": job_type, "args": [], **top, "options": options}
    return parse_submission(object_of(msgspec.json.encode(body)), now=now, limits=Limits())


def a_job(job_type: str = "mail.send", *, now: datetime = NOW, **options: Any) -> Record:
    asked = a_submission(job_type, now=now, **options)
    return enqueue(asked, asked.id or uuid7(), now, dice())


def changed(result: Record | Refusal) -> Record:
    assert isinstance(result, Record), result
    return result


def refused(result: object) -> Refusal:
    assert isinstance(result, Refusal), result
    return result


def an_active(worker: str = "w1", *, now: datetime = NOW, **options: Any) -> Record:
    return changed(rules.claim(a_job(now=now, **options), now, dice(), OPTIONS, worker=worker))


def acked(record: Record, result: Any = None, *, now: datetime = NOW, **hold: Any) -> Record:
    return changed(ack(record, result, now=now, **hold))


def ack(
    record: Record, result: Any = None, *, now: datetime = NOW, **hold: Any
) -> Record | Refusal:
    raw = None if result is None else Raw(msgspec.json.encode(result))
    asked = AckRequest(job_id=record.id, holding=Holding(**hold), result=raw)
    return rules.acknowledge(record, asked, now, dice(), OPTIONS)


def nack(
    record: Record,
    *,
    now: datetime = NOW,
    error: ErrorGiven | None = None,
    hold: Holding | None = None,
    options: OjsOptions = OPTIONS,
    **more: Any,
) -> Record | Refusal:
    asked = NackRequest(
        job_id=record.id, error=error or ErrorGiven(), holding=hold or Holding(), **more
    )
    return rules.nack(record, asked, now, dice(), options)


def in_state(state: str) -> Record:
    """A record that came to ``state`` by the ordinary road."""
    match state:
        case "scheduled":
            return a_job(scheduled_at="+PT60S")
        case "pending":
            return a_job(pending=True)
        case "available":
            return a_job()
        case "active":
            return an_active()
        case "retryable":
            return changed(nack(an_active()))
        case "completed":
            return acked(an_active())
        case "discarded":
            return changed(nack(an_active(), error=ErrorGiven(retryable=False)))
        case _:
            return changed(rules.cancel(a_job(), NOW, dice(), OPTIONS))
