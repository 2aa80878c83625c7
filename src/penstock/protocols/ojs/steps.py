"""How one record becomes the next: the number, the write id, the tail, the due time.

Every transition ends here, so that no rule can forget one of them.
"""

from __future__ import annotations

from datetime import datetime
from random import Random
from typing import Any

from msgspec.structs import replace

from penstock.protocols.ojs.instants import in_ms
from penstock.protocols.ojs.record import MAX_TAIL, Record, Step

__all__ = ["due_ms", "published", "rewritten", "stepped", "write_id"]


def stepped(
    record: Record,
    kind: str,
    now: datetime,
    dice: Random,
    *,
    job: dict[str, Any],
    worker: str = "",
    request: str = "",
    detail: dict[str, Any] | None = None,
    **private: Any,
) -> Record:
    """The record after one transition called ``kind``: ``job`` and ``private`` are changed."""
    n = record.n + 1
    changed = replace(record.job, **job)
    step = Step(
        n=n,
        at_ms=in_ms(now),
        kind=kind,
        came_from=record.job.state,
        attempt=changed.attempt,
        worker=worker,
        request=request,
        detail=detail or {},
    )
    tail = (*record.tail[-(MAX_TAIL - 1) :], step)
    draft = replace(
        record, job=changed, n=n, write_id=write_id(dice), tail=tail, txn="", staged=False
    )
    return _armed(replace(draft, **private) if private else draft)


def rewritten(record: Record, dice: Random, **changes: Any) -> Record:
    """The record with something noted that is no transition (a heartbeat, a checkpoint)."""
    return _armed(replace(record, write_id=write_id(dice), **changes))


def published(
    record: Record, dice: Random, *, replaces: str = "", scheduled_at: str = "", run_ms: int = 0
) -> Record:
    """A staged record made visible, with what it takes over from the job it replaces."""
    changes: dict[str, Any] = {"staged": False, "txn": "", "unique_replaces": replaces}
    if run_ms:
        job = replace(record.job, state="scheduled", scheduled_at=scheduled_at)
        changes |= {"job": job, "at": replace(record.at, run_ms=run_ms)}
    return rewritten(record, dice, **changes)


def write_id(dice: Random) -> str:
    return f"{dice.getrandbits(64):016x}"


def due_ms(record: Record) -> int:
    """When time alone changes something about this record; zero is never."""
    at = record.at
    match record.job.state:
        case "scheduled":
            times = (at.run_ms, at.expires_ms, at.start_by_ms, at.finish_by_ms)
        case "retryable":
            times = (at.run_ms, at.expires_ms, at.finish_by_ms, 0)
        case "available" | "pending":
            start_by = 0 if record.job.attempt else at.start_by_ms
            times = (at.expires_ms, start_by, at.finish_by_ms, 0)
        case "active":
            until = record.held.until_ms if record.held else 0
            times = (until, at.timeout_ms, at.finish_by_ms, 0)
        case _:
            times = (at.prune_result_ms, at.purge_ms, 0, 0)
    return min((t for t in times if t), default=0)


def _armed(record: Record) -> Record:
    due = due_ms(record)
    return record if due == record.due_ms else replace(record, due_ms=due)
