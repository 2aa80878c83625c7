"""natq's decisions, pure: what a message, an earlier record and an outcome lead to.

Order on the wire (the worker only obeys): processing record, handler, final record, then
ack or term. On a status of 500 and more nothing is written and the message comes back.
"""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any, Final

from msgspec import UNSET, Struct

from penstock.core.errors import BadResult
from penstock.core.outcome import (
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
from penstock.core.policy import Backoff, GiveUp, RetryPolicy, decide
from penstock.protocols.natq.wire import INTERNAL_ERROR, Output, StatusCode

__all__ = [
    "BACKOFF",
    "FAULT_DELAY",
    "UNFIT_RESULT",
    "Abandon",
    "Again",
    "AlreadyDone",
    "Finish",
    "GiveBack",
    "Postpone",
    "Run",
    "Settlement",
    "SomeoneElses",
    "exhausted",
    "on_delivery",
    "reply_to",
    "settlement",
]

BACKOFF: Final = Backoff()  # 2, 4, 8 … 60 s: the seed's min(2^n, 60)
_BAD_RESULT: Final = f"{BadResult.__module__}.{BadResult.__qualname__}"
UNFIT_RESULT: Final = "result.schema"  # the code of a result that is not as announced
FAULT_DELAY: Final = timedelta(seconds=5)  # a fault of the worker itself, not of the handler


# What a delivered message leads to ------------------------------------------------------


class Run(Struct, frozen=True):
    """Run it: the ``attempt``-th execution; ``revision`` of the record it replaces, if any."""

    attempt: int
    revision: int | None


class AlreadyDone(Struct, frozen=True):
    """A final record stands: settle the message as that record says, and run nothing."""

    output: Output | None


class SomeoneElses(Struct, frozen=True):
    """Another message of the same run id is alive: this one is a duplicate."""


def on_delivery(
    record: Output | None,
    revision: int | None,
    *,
    delivery: int,
    seq: int,
    erased_after: bool = False,
    owner_alive: bool = True,
    rerun_duplicates: bool = False,
) -> Run | AlreadyDone | SomeoneElses:
    """Decide about a message that finds ``record`` (at ``revision``) under its run id.

    ``erased_after``: the result was deleted after this message was stored, so it has run
    and been dropped. ``owner_alive``: the message that the record names still exists.
    """
    if erased_after and not rerun_duplicates:
        return AlreadyDone(None)
    if record is None:
        return Run(1, revision)
    if rerun_duplicates and delivery == 1:
        return Run(1, revision)
    if record.is_final:
        return AlreadyDone(record)
    if record.seq is UNSET:  # another SDK's record: it counts nothing but deliveries
        if delivery == 1:
            return SomeoneElses()
        return Run(max(delivery, 1), revision)
    if record.seq != seq:
        return SomeoneElses() if owner_alive else Run(1, revision)
    counted = 1 if record.attempt is UNSET else record.attempt
    return Run(counted + 1, revision)


# What an outcome leads to ---------------------------------------------------------------


class Finish(Struct, frozen=True):
    """Write ``output``, then ack (success) or term with the reason. ``dead``: keep a copy."""

    output: Output
    ack: bool
    dead: bool = False


class Again(Struct, frozen=True):
    """Write nothing; the message comes back after ``delay``."""

    delay: timedelta


class Postpone(Struct, frozen=True):
    """Keep the checkpoint, take the attempt back, and let the message come back later."""

    delay: timedelta
    checkpoint: Any
    iterates: bool


class GiveBack(Struct, frozen=True):
    """Take the attempt back; the message is anybody's at once."""


class Abandon(Struct, frozen=True):
    """Touch nothing: another may have written."""

    reason: str


Settlement = Finish | Again | Postpone | GiveBack | Abandon


def settlement(
    outcome: Outcome,
    *,
    task_id: str,
    run_id: str,
    attempt: int,
    policy: RetryPolicy,
    dice: Random | None = None,
    max_error_chars: int = 4096,
) -> Settlement:
    """What to do with a job's message and record, given what became of its handler."""
    match outcome:
        case Done(value=Output() as output):
            return _as_said(output, attempt, policy, dice)
        case Done(value=value, status=status):
            data = UNSET if value is None else value
            return Finish(Output(run_id, task_id, status or StatusCode.OK, data), ack=True)
        case Failed(failure=failure) if _BAD_RESULT in failure.lineage:
            # The work is done; running it again would do it twice and end no better.
            text = failure.message[:max_error_chars]
            return Finish(
                Output(run_id, task_id, int(StatusCode.INTERNAL_ERROR), UNSET, text), ack=False
            )
        case Failed(failure=failure, verdict=verdict):
            output = _failed_output(failure, verdict, task_id, run_id, max_error_chars)
            return _after_failure(
                output, failure, verdict, attempt=attempt, policy=policy, dice=dice
            )
        case Snoozed(after=after, checkpoint=checkpoint):
            return Postpone(after, checkpoint, iterates=False)
        case Continued(checkpoint=checkpoint):
            return Postpone(timedelta(0), checkpoint, iterates=True)
        case Interrupted():
            return GiveBack()
        case Cancelled(reason=reason) | Lost(reason=reason):
            return Abandon(reason)


def reply_to(outcome: Outcome, *, task_id: str, run_id: str) -> Output:
    """The answer to a sync request; there is no retry, so every verdict becomes a status."""
    match outcome:
        case Done(value=Output() as output):
            return output
        case Done(value=value, status=status):
            return Output(run_id, task_id, status or StatusCode.OK, _data(value))
        case Failed(failure=failure) if _BAD_RESULT in failure.lineage:
            said = failure.message if failure.code == UNFIT_RESULT else INTERNAL_ERROR
            return Output(run_id, task_id, int(StatusCode.INTERNAL_ERROR), UNSET, said)
        case Failed(failure=failure, verdict=verdict):
            return _failed_output(failure, verdict, task_id, run_id, None)
        case Snoozed():
            return _unavailable(task_id, run_id, "the task is not ready; ask again later")
        case Continued():
            return _unavailable(task_id, run_id, "a request cannot continue in iterations")
        case Interrupted(reason=reason) | Cancelled(reason=reason) | Lost(reason=reason):
            return _unavailable(task_id, run_id, reason)


def _as_said(
    output: Output, attempt: int, policy: RetryPolicy, dice: Random | None
) -> Finish | Again:
    """For handlers of the upstream kind, whose status decides everything."""
    if output.status < 300:
        return Finish(output, ack=True)
    if output.status < 500:
        return Finish(output, ack=False)
    text = output.error if isinstance(output.error, str) else f"status {output.status}"
    failure = Failure("status", "Status", text, status=output.status)
    return _after_failure(
        output, failure, Word.BY_POLICY, attempt=attempt, policy=policy, dice=dice
    )


def _after_failure(
    output: Output,
    failure: Failure,
    verdict: Verdict,
    *,
    attempt: int,
    policy: RetryPolicy,
    dice: Random | None,
) -> Finish | Again:
    if verdict is Word.NEVER:
        return Finish(output, ack=False)
    match decide(policy, failure, verdict, attempt=attempt, dice=dice):
        case GiveUp():
            return Finish(output, ack=False, dead=True)
        case again:
            return Again(again.delay)


def _failed_output(
    failure: Failure, verdict: Verdict, task_id: str, run_id: str, max_chars: int | None
) -> Output:
    said = "HandlerSays" in failure.lineage
    message = failure.message if said or verdict is Word.NEVER else _unhandled(failure)
    lowest = StatusCode.BAD_REQUEST if verdict is Word.NEVER else StatusCode.INTERNAL_ERROR
    status = failure.status or lowest
    if verdict is Word.NEVER and not 300 <= status < 500:
        status = lowest
    if verdict is not Word.NEVER and status < 500:
        status = lowest
    text = message if max_chars is None else message[:max_chars]
    return Output(run_id, task_id, int(status), _data(failure.data), text or failure.type)


def _unhandled(failure: Failure) -> str:
    return f"Unhandled exception: {failure.message or failure.type}"


def _unavailable(task_id: str, run_id: str, reason: str) -> Output:
    return Output(run_id, task_id, StatusCode.UNAVAILABLE, UNSET, reason)


def _data(value: Any) -> Any:
    return UNSET if value is None else value


def exhausted(task_id: str, run_id: str, attempts: int) -> Output:
    """The final word on a job that never lived to fail: its worker died each time."""
    text = f"gave up after {attempts} attempts, the last of which ended without an answer"
    return Output(run_id, task_id, int(StatusCode.INTERNAL_ERROR), UNSET, text)
