"""One OJS job in hand: the `Delivery` that the runtime renews and settles.

The lease is confirmed: every write is a compare-and-set on the record, which holds the fence of
this hand-out. Whoever was overtaken is refused and has changed nothing. A settlement carries an
id of its own, so that one whose answer was lost is sent again and takes effect once.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from penstock.core import codec, points
from penstock.core.context import LeaseLost
from penstock.core.delivery import (
    CancelAsked,
    Gone,
    Progress,
    Renewal,
    Renewed,
    Settled,
    SettledKind,
    Settlement,
    Unknown,
)
from penstock.core.errors import PenstockError
from penstock.core.ids import short_token
from penstock.core.invocation import Checkpoint, Invocation
from penstock.core.lease import Lease, Proof
from penstock.core.outcome import Continued, Failed, Interrupted, Outcome, Snoozed
from penstock.protocols.ojs.fields import object_of
from penstock.protocols.ojs.instants import instant, of_ms
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal, Refused
from penstock.protocols.ojs.requests import (
    AckRequest,
    ErrorGiven,
    Holding,
    NackRequest,
    parse_error,
)
from penstock.protocols.ojs.settling import Ack, Nack, Silence, settlement

if TYPE_CHECKING:
    from penstock.protocols.ojs.engine import Engine

__all__ = ["INPUT", "WHOLE", "Job"]

INPUT: Final = "x_penstock_input"
"""A member that our clients add: the one argument is the whole input, not the first of many."""
WHOLE: Final = Raw(b'"whole"')
_TRIES: Final = 3
_AMBIGUOUS: Final = "backend_timeout"


class Job:
    """A claimed job and how to let go of it."""

    __slots__ = ("_engine", "_holding", "invocation", "lease")

    def __init__(self, engine: Engine, record: Record, task: str, holder: str) -> None:
        held = record.held
        assert held is not None  # it was claimed a moment ago
        self._engine = engine
        self._holding = Holding(fence=held.fence, attempt=record.job.attempt)
        term = timedelta(milliseconds=held.term_ms)
        self.lease: Lease | None = Lease(
            holder, held.fence, term, of_ms(held.until_ms), Proof.CONFIRMED
        )
        self.invocation = _invocation(record, task)

    async def renew(self) -> Renewal:
        try:
            done = await self._engine.extend(self.invocation.work_id, self._holding)
        except PenstockError as error:
            return Unknown(error.message)
        if isinstance(done, Refusal):
            if done.details.get("current_state") == "cancelled":
                return CancelAsked("the job was cancelled")
            return Gone(done.message)
        return Renewed(of_ms(done.held.until_ms) if done.held is not None else None)

    async def settle(self, outcome: Outcome) -> Settlement:
        said = settlement(outcome, self.invocation)
        if isinstance(said, Silence):
            return Gone(said.reason)
        if points.armed:
            points.reach("ojs.handled")
        holding = msgspec.structs.replace(self._holding, request=short_token())
        done: Record | Refusal | None = None
        for _ in range(_TRIES):
            try:
                done = await self._send(said, holding)
                break
            except Refused as error:
                lost = error
        if done is None:
            return Unknown(lost.message)
        if isinstance(done, Refusal) and done.code == "envelope_too_large":
            too_large = {"code": "result_too_large", "message": done.message, "retryable": False}
            done = await self._send(Nack(error=too_large), holding)
        if isinstance(done, Refusal):
            return Gone(done.message)
        if points.armed:
            points.reach("ojs.settled")
        return _settled(done, outcome)

    async def save(self, checkpoint: Any) -> None:
        state = Raw(codec.encode(checkpoint))
        done = await self._engine.save_checkpoint(self.invocation.work_id, state, self._holding)
        if isinstance(done, Refusal):
            if done.code in ("conflict", "not_found"):
                raise LeaseLost(done.message)
            raise Refused(done)

    async def note(self, progress: Progress) -> None:
        value = None
        if progress.done is not None:
            value = progress.done / progress.total if progress.total else progress.done
        if value is None and not progress.note:
            return
        await self._engine.note_progress(
            self.invocation.work_id, value=value, message=progress.note
        )

    async def _send(self, said: Ack | Nack, holding: Holding) -> Record | Refusal:
        job_id = self.invocation.work_id
        if isinstance(said, Ack):
            result = None if said.result is None else Raw(codec.encode(said.result))
            return await self._engine.ack(AckRequest(job_id=job_id, holding=holding, result=result))
        keeps = Raw(codec.encode(said.checkpoint)) if said.keeps_checkpoint else None
        return await self._engine.nack(
            NackRequest(
                job_id=job_id,
                holding=holding,
                error=_error(said.error),
                requeue=said.requeue,
                delay_ms=said.delay_ms,
                retry_after_ms=said.retry_after_ms,
                checkpoint=keeps,
                iteration=said.iteration,
            )
        )


def _invocation(record: Record, task: str) -> Invocation:
    job = record.job
    args: Any = msgspec.json.decode(job.args)
    whole = record.extra.get(INPUT) == WHOLE and len(args) == 1
    saved = job.checkpoint
    checkpoint = None
    if isinstance(saved, Raw):
        state = msgspec.json.decode(saved)["state"]
        checkpoint = Checkpoint(state, record.iteration)
    elif record.iteration:
        checkpoint = Checkpoint(None, record.iteration)
    given = job.parent_results
    meta: Any = msgspec.json.decode(job.meta)
    trace = meta.get("traceparent")
    deadline = record.at.timeout_ms or record.at.finish_by_ms
    return Invocation(
        protocol="ojs",
        task=task,
        work_id=job.id,
        body=args[0] if whole else args,
        attempt=record.counted,
        delivery=job.attempt,
        max_attempts=job.max_attempts,
        iteration=record.iteration,
        checkpoint=checkpoint,
        parent_results=tuple(msgspec.json.decode(given)) if isinstance(given, Raw) else (),
        queue=job.queue,
        enqueued_at=instant(job.enqueued_at),
        deadline_at=of_ms(deadline) if deadline else None,
        trace=trace if isinstance(trace, str) else "",
        meta=meta,
        wire=record,
    )


def _error(said: dict[str, Any]) -> ErrorGiven:
    if not said:
        return ErrorGiven()
    return parse_error(object_of(codec.encode(said)), "error")


def _settled(record: Record, outcome: Outcome) -> Settled:
    attempt = record.counted
    match record.state:
        case "completed":
            return Settled(SettledKind.SUCCEEDED, attempt=attempt)
        case "discarded":
            return Settled(SettledKind.PARKED, attempt=attempt)
        case "cancelled":
            return Settled(SettledKind.CANCELLED, attempt=attempt)
    at = of_ms(record.at.run_ms) if record.at.run_ms else datetime.now(UTC)
    match outcome:
        case Snoozed():
            kind = SettledKind.SNOOZED
        case Continued():
            kind = SettledKind.CONTINUED
        case Interrupted():
            kind = SettledKind.RETURNED
        case Failed():
            kind = SettledKind.RETRYING
        case _:
            kind = SettledKind.SUCCEEDED
    return Settled(kind, at, attempt)
