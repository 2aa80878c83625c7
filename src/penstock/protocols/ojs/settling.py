"""What a handler's outcome becomes on this wire: an ack, a nack, or silence."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec import Struct

from penstock.core.invocation import Invocation
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
    Word,
)

__all__ = ["Ack", "Nack", "Settlement", "Silence", "settlement"]


class Ack(Struct, frozen=True):
    result: Any = None


class Nack(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``requeue`` costs no attempt; ``delay_ms``, ``retry_after_ms``, ``checkpoint`` and
    ``iteration`` are ours, and other servers ignore them."""

    error: dict[str, Any] = {}
    requeue: bool = False
    delay_ms: int = 0
    retry_after_ms: int | None = None
    checkpoint: Any = None
    keeps_checkpoint: bool = False
    iteration: int | None = None


class Silence(Struct, frozen=True):
    """Write nothing: the job is somebody else's, or over."""

    reason: str


Settlement = Ack | Nack | Silence


def settlement(outcome: Outcome, invocation: Invocation) -> Settlement:
    """The answer to the server for ``outcome``. The retry policy is the job's: a plain failure
    leaves the decision to the server."""
    match outcome:
        case Done(value=value):
            return Ack(value)
        case Failed(failure=failure, verdict=Word.NEVER):
            return Nack(error=_error(failure, retryable=False))
        case Failed(failure=failure, verdict=After(delay=delay)):
            return Nack(error=_error(failure, retryable=True), retry_after_ms=_ms(delay))
        case Failed(failure=failure):
            return Nack(error=_error(failure, retryable=True))
        case Snoozed(after=after, checkpoint=None):
            return Nack(requeue=True, delay_ms=_ms(after))
        case Snoozed(after=after, checkpoint=checkpoint):
            return Nack(
                requeue=True, delay_ms=_ms(after), checkpoint=checkpoint, keeps_checkpoint=True
            )
        case Continued(checkpoint=checkpoint):
            return Nack(
                requeue=True,
                checkpoint=checkpoint,
                keeps_checkpoint=True,
                iteration=invocation.iteration + 1,
            )
        case Interrupted(reason=reason):
            return Nack(requeue=True, error={"code": "shutdown", "message": reason})
        case Cancelled(reason=reason) | Lost(reason=reason):
            return Silence(reason)


def _error(failure: Failure, *, retryable: bool) -> dict[str, Any]:
    error: dict[str, Any] = {
        "code": failure.code,
        "type": failure.type,
        "message": failure.message,
        "retryable": retryable,
    }
    details: dict[str, Any] = {"error_class": failure.type}
    if failure.data is not None:
        details["data"] = failure.data
    error["details"] = details
    if failure.trace:
        error["backtrace"] = failure.trace.splitlines()[-50:]
    return error


def _ms(length: timedelta) -> int:
    """Whole milliseconds, never shorter than asked for."""
    return max(-(-length // timedelta(milliseconds=1)), 0)
