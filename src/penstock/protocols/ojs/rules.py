"""What may happen to a job when somebody asks: every transition of its life, as pure functions.

Each takes the record, the request, the time and the dice, and gives the next record or a
`Refusal`; the store then writes it by compare-and-set. A function that returns the record it
was given says: nothing to write, answer as if done. What time alone brings about stands in
`penstock.protocols.ojs.timing`, how a job begins in `penstock.protocols.ojs.arrival`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

from msgspec import UNSET, Raw
from msgspec.structs import replace

from penstock.protocols.ojs.envelope import too_large
from penstock.protocols.ojs.failing import discarded, failed
from penstock.protocols.ojs.instants import in_ms, instant_text, order_of
from penstock.protocols.ojs.notes import with_checkpoint
from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.ojs.record import Deadlines, Held, Record
from penstock.protocols.ojs.refusal import Refusal, wrong_state
from penstock.protocols.ojs.requests import AckRequest, ErrorGiven, Holding, NackRequest
from penstock.protocols.ojs.steps import rewritten, stepped, write_id

__all__ = [
    "acknowledge",
    "activate",
    "cancel",
    "claim",
    "drop",
    "give_back",
    "heartbeat",
    "nack",
    "not_held",
    "redrive",
    "removable",
    "reprioritise",
    "set_aside",
]

Changed = Record | Refusal

_MAX_GRACE: Final = timedelta(milliseconds=500)
_CANCELLABLE: Final = "scheduled, available, pending, retryable or active"
_MOVABLE: Final = frozenset({"scheduled", "available", "pending", "retryable"})


# Being worked on ----------------------------------------------------------------------


def claim(
    record: Record,
    now: datetime,
    dice: Random,
    options: OjsOptions,
    *,
    worker: str = "",
    term: timedelta | None = None,
    queue_timeout: timedelta | None = None,
    wake_up: str = "",
) -> Changed:
    """Hand the job to a worker for ``term``, else as long as the job or the server says.

    A job that is due for something else (it expired) is refused: let time decide first.
    """
    job = record.job
    if job.state != "available" or record.staged:
        return wrong_state("fetch", job.id, job.state, "available")
    now_ms = in_ms(now)
    if record.due_ms and record.due_ms <= now_ms:
        return wrong_state("fetch", job.id, "due", "available")
    term_ms = _term_ms(record, options, term)
    default_ms = round((queue_timeout or options.default_timeout) / timedelta(milliseconds=1))
    timeout_ms = job.timeout_ms or default_ms
    held = Held(
        fence=write_id(dice),
        until_ms=now_ms + term_ms,
        term_ms=term_ms,
        worker=worker,
        started_ms=now_ms,
        wake_up=wake_up,
    )
    at = replace(record.at, timeout_ms=now_ms + timeout_ms if timeout_ms else 0, run_ms=0)
    changed = {"state": "active", "attempt": job.attempt + 1, "started_at": instant_text(now)}
    return stepped(
        record,
        "started",
        now,
        dice,
        job={**changed, "next_attempt_at": ""},
        worker=worker,
        held=held,
        at=at,
        progress=None,
    )


def heartbeat(
    record: Record,
    holding: Holding,
    now: datetime,
    dice: Random,
    *,
    term: timedelta | None = None,
) -> Changed:
    """Keep the job for another term. A beat that would gain next to nothing writes nothing:
    what was granted before has a little to spare, so the promise of a full term holds."""
    if (refusal := not_held(record, "extend", holding)) is not None:
        return refusal
    assert record.held is not None  # not_held has seen to it
    term_ms = record.held.term_ms if term is None else round(term / timedelta(milliseconds=1))
    wanted = in_ms(now) + term_ms
    if record.held.until_ms >= wanted:
        return record
    spare = min(term_ms // 10, round(_MAX_GRACE / timedelta(milliseconds=1)))
    held = replace(record.held, until_ms=wanted + spare, term_ms=term_ms)
    return rewritten(record, dice, held=held)


def acknowledge(
    record: Record, asked: AckRequest, now: datetime, dice: Random, options: OjsOptions
) -> Changed:
    """The handler succeeded."""
    if _repeated(record, asked.holding):
        return record
    if (refusal := not_held(record, "ack", asked.holding)) is not None:
        return refusal
    size = len(bytes(asked.result)) if asked.result is not None else 0
    if size > options.limits.max_result_bytes:
        return too_large("result", size, options.limits.max_result_bytes)
    text = instant_text(now)
    now_ms = in_ms(now)
    changed: dict[str, Any] = {"state": "completed", "completed_at": text, "error": UNSET}
    at = replace(record.at, timeout_ms=0, purge_ms=in_ms(now + options.keep_completed))
    if asked.result is not None:
        kept, at = _result(record, asked.result, now, at, options)
        changed.update(kept)
    started_ms = record.held.started_ms if record.held else now_ms
    done = None if record.progress is None else replace(record.progress, value=1.0, updated_at=text)
    return stepped(
        record,
        "completed",
        now,
        dice,
        job=changed,
        worker=record.held.worker if record.held else "",
        request=asked.holding.request,
        detail={"duration_ms": max(now_ms - started_ms, 0)},
        held=None,
        at=at,
        deaths=0,
        progress=done,
    )


def nack(
    record: Record, asked: NackRequest, now: datetime, dice: Random, options: OjsOptions
) -> Changed:
    """The handler did not succeed: given back with ``requeue``, else failed."""
    if _repeated(record, asked.holding):
        return record
    if (refusal := not_held(record, "nack", asked.holding)) is not None:
        return refusal
    kept = _saved(record, asked, now, options)
    if isinstance(kept, Refusal):
        return kept
    record = kept
    if asked.requeue:
        delay = min(timedelta(milliseconds=asked.delay_ms), timedelta(days=365))
        return give_back(record, now, dice, delay=delay, request=asked.holding.request)
    after = asked.retry_after_ms
    return failed(
        record,
        asked.error,
        now,
        dice,
        options,
        retry_after=None if after is None else timedelta(milliseconds=after),
        worker=record.held.worker if record.held else "",
        request=asked.holding.request,
    )


def give_back(
    record: Record,
    now: datetime,
    dice: Random,
    *,
    delay: timedelta = timedelta(0),
    request: str = "",
) -> Record:
    """An attempt that does not count: the job is available again, or scheduled after ``delay``."""
    text = instant_text(now)
    changed: dict[str, Any] = {"state": "available", "started_at": "", "enqueued_at": text}
    at = replace(record.at, run_ms=0, timeout_ms=0)
    if delay > timedelta(0):
        again = now + delay
        changed |= {"state": "scheduled", "scheduled_at": instant_text(again)}
        at = replace(at, run_ms=in_ms(again))
    return stepped(
        record,
        "returned",
        now,
        dice,
        job=changed,
        worker=record.held.worker if record.held else "",
        request=request,
        held=None,
        at=at,
        order=order_of(now),
        returned=record.returned + 1,
    )


# Being steered ------------------------------------------------------------------------


def cancel(
    record: Record,
    now: datetime,
    dice: Random,
    options: OjsOptions,
    *,
    reason: str = "",
    by: str = "",
) -> Changed:
    """Stop the job for good. An active one is stopped at once; its worker hears it later."""
    if record.is_terminal:
        return wrong_state("cancel", record.id, record.state, _CANCELLABLE)
    told = {k: v[:500] for k, v in (("reason", reason), ("cancelled_by", by)) if v}
    at = replace(record.at, run_ms=0, timeout_ms=0, purge_ms=in_ms(now + options.keep_cancelled))
    changed = {"state": "cancelled", "cancelled_at": instant_text(now), "next_attempt_at": ""}
    worker = record.held.worker if record.held else ""
    return stepped(
        record,
        "cancelled",
        now,
        dice,
        job=changed,
        worker=worker,
        detail=told,
        held=None,
        at=at,
    )


def activate(record: Record, now: datetime, dice: Random) -> Changed:
    """Let a pending job be fetched."""
    if record.state != "pending":
        return wrong_state("activate", record.id, record.state, "pending")
    text = instant_text(now)
    changed = {"state": "available", "activated_at": text, "enqueued_at": text}
    return stepped(record, "activated", now, dice, job=changed, order=order_of(now))


def reprioritise(record: Record, priority: int, now: datetime, dice: Random) -> Changed:
    """Change the priority of a job that waits; it keeps its place among equals."""
    if record.state not in _MOVABLE:
        expected = "scheduled, available, pending or retryable"
        return wrong_state("reprioritise", record.id, record.state, expected)
    return stepped(record, "prioritised", now, dice, job={"priority": priority})


def redrive(
    record: Record,
    now: datetime,
    dice: Random,
    *,
    override: dict[str, Any] | None = None,
) -> Changed:
    """Give a discarded or cancelled job another life: attempts start over, errors are kept."""
    if record.state not in ("discarded", "cancelled"):
        return wrong_state("retry", record.id, record.state, "discarded or cancelled")
    text = instant_text(now)
    changed: dict[str, Any] = {
        "state": "available",
        "attempt": 0,
        "enqueued_at": text,
        "error": UNSET,
        "retry_delay_ms": UNSET,
        **dict.fromkeys(("started_at", "completed_at", "cancelled_at", "discarded_at"), ""),
        **(override or {}),
    }
    if (retry := changed.get("retry")) is not None:
        changed["max_attempts"] = retry.max_attempts
    if record.at.expires_ms and record.at.expires_ms <= in_ms(now):
        changed["expires_at"] = ""
    expires = record.at.expires_ms if record.at.expires_ms > in_ms(now) else 0
    return stepped(
        record,
        "redriven",
        now,
        dice,
        job=changed,
        order=order_of(now),
        returned=0,
        deaths=0,
        dead_letter=False,
        iteration=0,
        at=Deadlines(expires_ms=expires),
    )


def set_aside(
    record: Record,
    until: datetime,
    now: datetime,
    dice: Random,
    options: OjsOptions,
    *,
    drops: bool,
) -> Changed:
    """A job whose limit is used up and that does not want to stand in line: scheduled for
    ``until``, or dropped."""
    if record.state != "available":
        return wrong_state("set aside", record.id, record.state, "available")
    if drops:
        error = ErrorGiven(code="rate_limited", message="Dropped: its rate limit is used up")
        return discarded(record, now, dice, options, error=error)
    changed = {"state": "scheduled", "scheduled_at": instant_text(until)}
    at = replace(record.at, run_ms=in_ms(until))
    return stepped(record, "rescheduled", now, dice, job=changed, at=at)


def drop(record: Record, now: datetime, dice: Random, options: OjsOptions) -> Changed:
    """Discard a waiting job to make room for newer ones."""
    if record.state != "available":
        return wrong_state("drop", record.id, record.state, "available")
    error = ErrorGiven(code="queue_full", message="Dropped to make room for newer jobs")
    return discarded(record, now, dice, options, error=error, kind="dropped")


def removable(record: Record) -> Refusal | None:
    """Why a job may not be deleted; ``None`` if it may."""
    if record.is_terminal:
        return None
    return wrong_state("delete", record.id, record.state, "completed, cancelled or discarded")


# Helpers ------------------------------------------------------------------------------


def not_held(record: Record, operation: str, holding: Holding) -> Refusal | None:
    """Why the caller may not write: the job is not active, or somebody else's."""
    held = record.held
    if record.state != "active" or held is None:
        return wrong_state(operation, record.id, record.state, "active")
    if holding.fence and holding.fence != held.fence:
        return _fenced(operation, record, "fence")
    if holding.worker and held.worker and holding.worker != held.worker:
        return _fenced(operation, record, "worker_id")
    if holding.attempt and holding.attempt != record.job.attempt:
        return _fenced(operation, record, "attempt")
    return None


def _fenced(operation: str, record: Record, which: str) -> Refusal:
    return Refusal(
        "conflict",
        f"Cannot {operation} job {record.id}: it has been handed to another since ({which})",
        {"job_id": record.id, "current_state": record.state, "expected_state": "active",
         "mismatch": which, "attempt": record.job.attempt},
    )  # fmt: skip


def _repeated(record: Record, holding: Holding) -> bool:
    """Whether this very request has taken effect already: its answer was lost, not its work."""
    return bool(holding.request) and any(s.request == holding.request for s in record.tail)


def _term_ms(record: Record, options: OjsOptions, term: timedelta | None) -> int:
    if term is not None:
        return round(term / timedelta(milliseconds=1))
    own = record.job.visibility_timeout_ms
    return own or round(options.visibility_timeout / timedelta(milliseconds=1))


def _result(
    record: Record, result: Raw, now: datetime, at: Deadlines, options: OjsOptions
) -> tuple[dict[str, Any], Deadlines]:
    """What is kept of a result, and until when. A workflow's members keep theirs for it."""
    ttl = record.job.result_ttl
    in_workflow = record.member is not None and record.member.workflow != ""
    if ttl == 0 and not in_workflow:
        return {}, at
    kept: dict[str, Any] = {
        "result": result,
        "result_stored_at": instant_text(now),
        "result_size_bytes": len(bytes(result)),
    }
    if ttl == -1:
        return kept, replace(at, purge_ms=0)
    keep = options.keep_results if ttl is UNSET else timedelta(seconds=ttl)
    until = now + keep
    kept["result_expires_at"] = instant_text(until)
    return kept, replace(at, prune_result_ms=in_ms(until))


def _saved(record: Record, asked: NackRequest, now: datetime, options: OjsOptions) -> Changed:
    """The record with the checkpoint that came with a nack, in the same write."""
    if asked.iteration is not None:
        record = replace(record, iteration=asked.iteration)
    if asked.checkpoint is None:
        return record
    return with_checkpoint(record, asked.checkpoint, now, options)
