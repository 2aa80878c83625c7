"""What time alone does to a job: promotes it, expires it, takes it back, forgets it.

One function for one heap: every record says in ``due_ms`` when it must be looked at, and
`when_due` decides what that moment brings. Looking too early, twice, or on two instances at
once does no harm.
"""

from __future__ import annotations

from datetime import datetime
from random import Random

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from penstock.protocols.ojs.failing import after_silence, discarded, error_entry, failed
from penstock.protocols.ojs.instants import in_ms, instant_text, order_of
from penstock.protocols.ojs.names import WAITING
from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal, wrong_state
from penstock.protocols.ojs.requests import ErrorGiven
from penstock.protocols.ojs.steps import rewritten, stepped

__all__ = ["Later", "Purge", "Ripe", "when_due", "worker_died"]

_POSTPONED_MS = 3_600_000


class Later(Struct, frozen=True):
    """Nothing to do before this; zero: nothing at all."""

    due_ms: int


class Purge(Struct, frozen=True):
    """The record may go, by compare-and-set."""

    job_id: str


Ripe = Record | Purge | Later


def when_due(
    record: Record, now: datetime, dice: Random, options: OjsOptions, *, exempt: bool = False
) -> Ripe:
    """What has become of ``record`` by ``now``. ``exempt``: it must outlive its retention,
    because the workflow it belongs to is not finished."""
    now_ms = in_ms(now)
    if not record.due_ms or record.due_ms > now_ms:
        return Later(record.due_ms)
    if record.is_terminal:
        return Later(now_ms + _POSTPONED_MS) if exempt else _forget(record, now_ms, dice)
    if _passed(record.at.finish_by_ms, now_ms):
        return _ended(record, "total_timeout", now, dice, options)
    if record.state in WAITING:
        return _waiting(record, now, dice, options)
    return _running(record, now, dice, options)


def worker_died(
    record: Record, worker: str, now: datetime, dice: Random, options: OjsOptions
) -> Record | Refusal:
    """Take a job back from a worker that stopped beating."""
    if record.state != "active" or record.held is None or record.held.worker != worker:
        return wrong_state("take back", record.id, record.state, f"active on {worker}")
    return after_silence(record, "worker_death", now, dice, options)


def _waiting(record: Record, now: datetime, dice: Random, options: OjsOptions) -> Ripe:
    now_ms = in_ms(now)
    if _passed(record.at.expires_ms, now_ms):
        error = ErrorGiven(code="expired", message="expires_at has passed")
        return discarded(record, now, dice, options, error=error, kind="expired")
    if not record.job.attempt and _passed(record.at.start_by_ms, now_ms):
        return _ended(record, "enqueue_ttl_expired", now, dice, options)
    if record.state in ("scheduled", "retryable") and _passed(record.at.run_ms, now_ms):
        return _promoted(record, now, dice)
    return Later(record.due_ms)


def _promoted(record: Record, now: datetime, dice: Random) -> Record:
    return stepped(
        record,
        "promoted",
        now,
        dice,
        job={"state": "available", "enqueued_at": instant_text(now), "next_attempt_at": ""},
        order=order_of(now),
        at=replace(record.at, run_ms=0),
    )


def _running(record: Record, now: datetime, dice: Random, options: OjsOptions) -> Ripe:
    now_ms = in_ms(now)
    if _passed(record.at.timeout_ms, now_ms):
        error = ErrorGiven(
            code="timeout",
            type="timeout",
            message="The attempt ran longer than timeout_ms allows",
            retryable=True,
            details=Raw(b'{"timeout_kind":"execution"}'),
        )
        worker = record.held.worker if record.held else ""
        return failed(record, error, now, dice, options, worker=worker)
    if record.held is None or _passed(record.held.until_ms, now_ms):
        return after_silence(record, "visibility_timeout", now, dice, options)
    return Later(record.due_ms)


def _ended(record: Record, kind: str, now: datetime, dice: Random, options: OjsOptions) -> Record:
    """Out of time for good: not a dead letter, since running it again could not help."""
    error = ErrorGiven(code="timeout", type=kind, message=f"Discarded: {kind}")
    entry = error_entry(error, record.job.attempt, instant_text(now))
    books = {"error": entry, "errors": (*record.job.errors[-9:], entry)}
    ran = record.state == "active"
    return discarded(record, now, dice, options, error=error, ran=ran, job=books)


def _forget(record: Record, now_ms: int, dice: Random) -> Ripe:
    if _passed(record.at.purge_ms, now_ms):
        return Purge(record.id)
    if not _passed(record.at.prune_result_ms, now_ms):
        return Later(record.due_ms)
    pruned = replace(record.job, result=UNSET)
    return rewritten(record, dice, job=pruned, at=replace(record.at, prune_result_ms=0))


def _passed(at_ms: int, now_ms: int) -> bool:
    return bool(at_ms) and at_ms <= now_ms
