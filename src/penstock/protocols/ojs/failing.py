"""What becomes of a job whose attempt did not succeed: again later, again at once, or never.

Shared by nacks, execution timeouts, lapsed leases and dead workers, so that all four keep
the same books: the error goes on the record, the budget is the policy's, and a job that keeps
killing its workers is parked among the dead letters however many attempts it has left.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from penstock.protocols.ojs.instants import in_ms, instant_text, order_of
from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.requests import ErrorGiven
from penstock.protocols.ojs.retry import delay_after, never_retried
from penstock.protocols.ojs.steps import stepped

__all__ = ["after_silence", "discarded", "error_entry", "failed"]

_BURIED: Final = frozenset({"DISCARD", "FAIL", "DEAD_LETTER"})  # handler codes that beat the policy
_MAX_DETAIL: Final = 500


def failed(
    record: Record,
    error: ErrorGiven,
    now: datetime,
    dice: Random,
    options: OjsOptions,
    *,
    retry_after: timedelta | None = None,
    worker: str = "",
    request: str = "",
    changes: dict[str, Any] | None = None,
) -> Record:
    """The record after an attempt that ended in ``error``: retryable, or discarded."""
    books = _booked(record, error, now, options)
    private = {"held": None, "deaths": 0, **(changes or {})}
    delay = _delay(record, error, dice, options, retry_after)
    finish_by = record.at.finish_by_ms
    if delay is None or (finish_by and in_ms(now + delay) >= finish_by):
        dead = error.code == "DEAD_LETTER" or (
            error.code not in _BURIED and record.job.retry.on_exhaustion == "dead_letter"
        )
        return discarded(
            record, now, dice, options, error=error, dead_letter=dead, ran=True,
            worker=worker, request=request, job=books, private=private,
        )  # fmt: skip
    again = now + delay
    return stepped(
        record,
        "retrying",
        now,
        dice,
        job={
            **books,
            "state": "retryable",
            "next_attempt_at": instant_text(again),
            "retry_delay_ms": round(delay / timedelta(milliseconds=1)),
        },
        worker=worker,
        request=request,
        detail=_told(record, error, now),
        at=replace(record.at, run_ms=in_ms(again), timeout_ms=0),
        **private,
    )


def after_silence(
    record: Record, kind: str, now: datetime, dice: Random, options: OjsOptions
) -> Record:
    """The record after an attempt that ended without an answer: available again at once, without
    backoff, or discarded. ``kind``: ``visibility_timeout`` or ``worker_death``."""
    held = record.held
    worker = held.worker if held else ""
    deaths = record.deaths + 1
    error = ErrorGiven(
        code=kind, type=kind, message=f"No answer from worker {worker or 'unnamed'} in time"
    )
    books = _booked(record, error, now, options)
    private: dict[str, Any] = {"held": None, "deaths": deaths}
    parked = deaths >= options.max_deaths
    if parked or record.exhausted:
        dead = parked or record.job.retry.on_exhaustion == "dead_letter"
        return discarded(
            record, now, dice, options, error=error, dead_letter=dead, ran=True,
            worker=worker, job=books, private=private,
        )  # fmt: skip
    return stepped(
        record,
        "lapsed",
        now,
        dice,
        job={**books, "state": "available", "started_at": "", "enqueued_at": instant_text(now)},
        worker=worker,
        detail=_told(record, error, now),
        order=order_of(now),
        at=replace(record.at, run_ms=0, timeout_ms=0),
        **private,
    )


def discarded(
    record: Record,
    now: datetime,
    dice: Random,
    options: OjsOptions,
    *,
    error: ErrorGiven,
    dead_letter: bool = False,
    ran: bool = False,
    kind: str = "discarded",
    worker: str = "",
    request: str = "",
    job: dict[str, Any] | None = None,
    private: dict[str, Any] | None = None,
) -> Record:
    """The record given up for good. ``ran``: it failed, so it also has a ``completed_at``."""
    text = instant_text(now)
    ends: dict[str, Any] = {"state": "discarded", "discarded_at": text, "next_attempt_at": ""}
    if ran:
        ends["completed_at"] = text
    keep = options.keep_dead_letters if dead_letter else options.keep_discarded
    at = replace(record.at, run_ms=0, timeout_ms=0, purge_ms=in_ms(now + keep))
    return stepped(
        record,
        kind,
        now,
        dice,
        job={**(job or {}), **ends},
        worker=worker,
        request=request,
        detail=_told(record, error, now),
        dead_letter=dead_letter,
        **{"at": at, "held": None, **(private or {})},
    )


def error_entry(error: ErrorGiven, attempt: int, at: str) -> Raw:
    """An error as it stands in ``error`` and ``errors``."""
    entry: dict[str, Any] = {
        "type": error.shown_type,
        "code": error.code,
        "message": error.message,
        "attempt": attempt,
        "occurred_at": at,
    }
    if error.retryable is not None:
        entry["retryable"] = error.retryable
    if error.details is not None:
        entry["details"] = error.details
    if error.backtrace:
        entry["backtrace"] = error.backtrace
    return Raw(msgspec.json.encode(entry))


def _booked(
    record: Record, error: ErrorGiven, now: datetime, options: OjsOptions
) -> dict[str, Any]:
    """The members of the job that keep its errors."""
    entry = error_entry(error, record.job.attempt, instant_text(now))
    kept = record.job.errors[-(options.limits.max_errors - 1) :]
    return {
        "error": entry,
        "errors": (*kept, entry),
        "next_attempt_at": "",
        "retry_delay_ms": UNSET,
    }


def _delay(
    record: Record,
    error: ErrorGiven,
    dice: Random,
    options: OjsOptions,
    retry_after: timedelta | None,
) -> timedelta | None:
    """How long until the next attempt; ``None`` when there is none."""
    policy = record.job.retry
    if error.code in _BURIED or error.retryable is False:
        return None
    if never_retried(policy, error.names) or record.exhausted:
        return None
    if retry_after is not None:
        return min(max(retry_after, timedelta(0)), options.max_retry_after)
    return delay_after(policy, record.counted, dice)


def _told(record: Record, error: ErrorGiven, now: datetime) -> dict[str, Any]:
    """What events say about a failure."""
    told: dict[str, Any] = {"code": error.code, "message": error.message[:_MAX_DETAIL]}
    if error.retryable is not None:
        told["retryable"] = error.retryable
    if record.held is not None and record.held.started_ms:
        told["duration_ms"] = max(in_ms(now) - record.held.started_ms, 0)
    return told
