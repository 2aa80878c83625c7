"""How a job comes into being: from a checked submission to its first record."""

from __future__ import annotations

from datetime import datetime
from random import Random
from typing import Any

from msgspec import UNSET, Raw
from msgspec.structs import replace

from penstock.protocols.ojs.envelope import Submission
from penstock.protocols.ojs.instants import in_ms, instant_text, order_of
from penstock.protocols.ojs.record import Deadlines, Job, Membership, Record
from penstock.protocols.ojs.steps import stepped, write_id

__all__ = ["enqueue"]


def enqueue(
    asked: Submission,
    job_id: str,
    now: datetime,
    dice: Random,
    *,
    unique_key: str = "",
    member: Membership | None = None,
    parent_results: Raw | None = None,
    txn: str = "",
    staged: bool = False,
) -> Record:
    """The first record of a job. With ``txn`` or ``staged`` it is not visible yet."""
    now_ms = in_ms(now)
    waits = asked.scheduled_at_ms > now_ms
    state: Any = "pending" if asked.pending else "scheduled" if waits else "available"
    text = instant_text(now)
    job = Job(
        specversion="1.0",
        id=job_id,
        type=asked.type,
        queue=asked.queue,
        args=asked.args,
        meta=asked.meta,
        priority=asked.priority,
        state=state,
        attempt=0,
        max_attempts=asked.retry.max_attempts,
        created_at=text,
        enqueued_at=text,
        retry=asked.retry,
        **_carried(asked),
    )
    if member is not None and member.workflow:
        job = replace(
            job,
            workflow_id=member.workflow,
            workflow_step=member.step,
            parent_results=parent_results or Raw(b"[]"),
        )
    blank = Record(
        job=job,
        n=0,
        write_id=write_id(dice),
        order=order_of(now),
        created_ms=now_ms,
        at=_deadlines(asked, now_ms, waits=waits and not asked.pending),
        unique_key=unique_key,
        limit=asked.rate_limit,
        tenant=asked.tenant,
        member=member,
        extra=asked.extra,
    )
    kind = "enqueued" if state == "available" else state
    first = stepped(blank, kind, now, dice, job={})
    return replace(first, txn=txn, staged=staged) if txn or staged else first


def _carried(asked: Submission) -> dict[str, Any]:
    return {
        "scheduled_at": asked.scheduled_at,
        "expires_at": asked.expires_at,
        "tags": asked.tags,
        "timeout_ms": asked.timeout_ms,
        "visibility_timeout_ms": asked.visibility_timeout_ms,
        "heartbeat_timeout": asked.heartbeat_timeout,
        "total_timeout": asked.total_timeout,
        "enqueue_ttl": asked.enqueue_ttl,
        "grace_period": asked.grace_period,
        "result_ttl": UNSET if asked.result_ttl is None else asked.result_ttl,
        "unique": UNSET if asked.unique_shown is None else asked.unique_shown,
        "rate_limit": UNSET if asked.rate_limit_shown is None else asked.rate_limit_shown,
        "schema": asked.schema,
        "version": UNSET if asked.version is None else asked.version,
        "parent_id": asked.parent_id,
        "root_id": asked.root_id,
    }


def _deadlines(asked: Submission, now_ms: int, *, waits: bool) -> Deadlines:
    return Deadlines(
        run_ms=asked.scheduled_at_ms if waits else 0,
        expires_ms=asked.expires_at_ms,
        start_by_ms=now_ms + asked.enqueue_ttl * 1000 if asked.enqueue_ttl else 0,
        finish_by_ms=now_ms + asked.total_timeout * 1000 if asked.total_timeout else 0,
    )
