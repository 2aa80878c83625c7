"""OmniQ's decisions, pure: how a lease ends, given what became of its handler.

The job carries its own policy (attempts, a constant backoff), and that one counts. What only
our scripts can do (a delay of its own, an end before the last attempt, a hand-back) looks to
other SDKs like any waiting, delayed or failed job.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from penstock.core import codec
from penstock.core.delivery import Gone, Settled, SettledKind, Settlement
from penstock.core.invocation import Checkpoint
from penstock.core.outcome import (
    After,
    Cancelled,
    Continued,
    Done,
    Failed,
    Failure,
    Interrupted,
    Lost,
    Outcome,
    Snoozed,
    Verdict,
    Word,
)
from penstock.core.policy import GiveUp, RetryPolicy, decide
from penstock.protocols.omniq.store import Ended, Settle
from penstock.protocols.omniq.wire import ReservedJob

__all__ = ["decode_checkpoint", "encode_checkpoint", "error_text", "settled", "settlement"]

_ANY_NUMBER: Final = RetryPolicy()
_checkpoints = msgspec.json.Decoder(Checkpoint)


def settlement(
    outcome: Outcome,
    job: ReservedJob,
    *,
    policy: RetryPolicy = _ANY_NUMBER,
    kept: Checkpoint | None = None,
    result_ttl: timedelta | None = None,
) -> Settle | None:
    """The end to write for ``job``; ``None`` when another may have written: then touch nothing.

    ``policy`` only adds which errors are never retried; how often and when is the job's.
    """
    name, token = job.job_id, job.lease_token
    match outcome:
        case Done(value=value):
            return _succeed(job, value, result_ttl)
        case Failed(failure=failure, verdict=verdict):
            return _fail(job, failure, verdict, policy)
        case Snoozed(after=after, checkpoint=value):
            notes = encode_checkpoint(value, kept, iterates=False)
            return Settle.snooze(name, token, delay_ms=_ms(after), checkpoint=notes)
        case Continued(checkpoint=value):
            notes = encode_checkpoint(value, kept, iterates=True)
            return Settle.snooze(name, token, delay_ms=0, checkpoint=notes)
        case Interrupted():
            return Settle.release(name, token)
        case Cancelled() | Lost():
            return None


def settled(outcome: Outcome, ended: Ended, job: ReservedJob) -> Settlement:
    """What the answer of the store means for the runtime."""
    if ended.refused:
        return Gone(f"the lease of job {job.job_id} is gone: {ended.status}")
    return Settled(_kind(outcome, ended), _instant(ended.due_ms), job.attempt)


def error_text(failure: Failure) -> str:
    """An error as all SDKs write it: its type and what it said."""
    return f"{failure.type}: {failure.message}"


def encode_checkpoint(value: Any, kept: Checkpoint | None, *, iterates: bool) -> bytes:
    """What is kept on the job for its next run; empty leaves there what there is."""
    if value is None and not iterates:
        return b""
    iteration = (0 if kept is None else kept.iteration) + (1 if iterates else 0)
    return codec.encode(Checkpoint(value, iteration))


def decode_checkpoint(notes: bytes | None) -> Checkpoint | None:
    """What an earlier run kept; notes that are not ours are nobody's."""
    if not notes:
        return None
    try:
        return _checkpoints.decode(notes)
    except msgspec.DecodeError:
        return None


def _succeed(job: ReservedJob, value: Any, result_ttl: timedelta | None) -> Settle:
    if result_ttl is None:
        return Settle.succeed(job.job_id, job.lease_token)
    return Settle.succeed(
        job.job_id, job.lease_token, result=codec.encode(value), result_ttl_ms=_ms(result_ttl)
    )


def _fail(job: ReservedJob, failure: Failure, verdict: Verdict, policy: RetryPolicy) -> Settle:
    name, token, error = job.job_id, job.lease_token, error_text(failure)
    if verdict is Word.NEVER or _never(policy, failure, job):
        return Settle.reject(name, token, error=error)
    if isinstance(verdict, After):
        return Settle.retry(name, token, delay_ms=_ms(verdict.delay), error=error)
    return Settle.fail(name, token, error=error)


def _never(policy: RetryPolicy, failure: Failure, job: ReservedJob) -> bool:
    """Whether the task gives up on this error although the job has attempts left."""
    if not policy.never and not policy.by_error:
        return False
    limited = policy.limited(job.max_attempts)
    return isinstance(decide(limited, failure, Word.BY_POLICY, attempt=job.attempt), GiveUp)


def _kind(outcome: Outcome, ended: Ended) -> SettledKind:
    match outcome:
        case Failed():
            return SettledKind.PARKED if ended.status == "FAILED" else SettledKind.RETRYING
        case Snoozed():
            return SettledKind.SNOOZED
        case Continued():
            return SettledKind.CONTINUED
        case Interrupted():
            return SettledKind.RETURNED
        case _:
            return SettledKind.SUCCEEDED


def _instant(due_ms: int | None) -> datetime | None:
    return None if not due_ms else datetime.fromtimestamp(due_ms / 1000, UTC)


def _ms(length: timedelta) -> int:
    return max(round(length.total_seconds() * 1000), 0)
