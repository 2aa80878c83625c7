"""One job fetched over HTTP: the `Delivery` that the runtime renews and settles.

What proves the hold goes along with every request (worker, attempt, and the fence where the
server gives one), and a settlement carries an id: a server that knows it may be asked twice.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from penstock.core import codec
from penstock.core.context import LeaseLost
from penstock.core.delivery import (
    Gone,
    Progress,
    Renewal,
    Settled,
    SettledKind,
    Settlement,
    Unknown,
)
from penstock.core.ids import short_token
from penstock.core.invocation import Checkpoint, Invocation
from penstock.core.lease import Lease, Proof
from penstock.core.outcome import Continued, Interrupted, Outcome, Snoozed
from penstock.protocols.ojs.instants import instant
from penstock.protocols.ojs.job import INPUT
from penstock.protocols.ojs.remote.beats import Beats
from penstock.protocols.ojs.remote.errors import OjsError, ServerAway
from penstock.protocols.ojs.remote.views import RemoteJob, SettledAnswer
from penstock.protocols.ojs.settling import Ack, Nack, Silence, settlement

__all__ = ["HttpJob"]

_TOO_LARGE: Final = 413
_GONE: Final = frozenset((404, 409))


class _Whole(Struct):
    """Our own member: the one argument is the whole input."""

    x_penstock_input: str = ""


assert INPUT in _Whole.__struct_fields__


class HttpJob:
    """A claimed job and how to let go of it."""

    def __init__(self, beats: Beats, job: RemoteJob, raw: Raw, task: str) -> None:
        self._transport = beats.transport
        self._beats = beats
        self._job = job
        self._proof: dict[str, Any] = {"worker_id": beats.holder, "attempt": job.attempt}
        if job.fence:
            self._proof["fence"] = job.fence
        until = datetime.now(UTC) + beats.term
        fence = job.fence or short_token()
        self.lease: Lease | None = Lease(beats.holder, fence, beats.term, until, Proof.CONFIRMED)
        beats.hold(job.id)
        self.invocation = _invocation(job, raw, task)

    async def renew(self) -> Renewal:
        return await self._beats.renew(self._job.id)

    async def settle(self, outcome: Outcome) -> Settlement:
        try:
            return await self._settle(outcome)
        finally:
            self._beats.let_go(self._job.id)

    async def _settle(self, outcome: Outcome) -> Settlement:
        said = settlement(outcome, self.invocation)
        if isinstance(said, Silence):
            return Gone(said.reason)
        request = short_token()
        try:
            try:
                answer = await self._send(said, request)
            except OjsError as error:
                if error.status != _TOO_LARGE:
                    raise
                why = {"code": "result_too_large", "message": error.message, "retryable": False}
                answer = await self._send(Nack(error=why), request)
        except ServerAway as error:
            return Unknown(error.message)
        except OjsError as error:
            return Gone(error.message) if error.status in _GONE else Unknown(error.message)
        return _settled(answer, self._job.returned, outcome)

    async def save(self, checkpoint: Any) -> None:
        body = {"state": Raw(codec.encode(checkpoint)), **self._proof}
        try:
            await self._transport.ask("PUT", f"/ojs/v1/jobs/{self._job.id}/checkpoint", body)
        except OjsError as error:
            if error.status in _GONE:
                raise LeaseLost(error.message) from error
            raise

    async def note(self, progress: Progress) -> None:
        body: dict[str, Any] = {}
        if progress.done is not None:
            body["progress"] = progress.done / progress.total if progress.total else progress.done
        if progress.note:
            body["message"] = progress.note
        if body:
            await self._transport.ask("PUT", f"/ojs/v1/jobs/{self._job.id}/progress", body)

    async def _send(self, said: Ack | Nack, request: str) -> SettledAnswer:
        body: dict[str, Any] = {"job_id": self._job.id, "request_id": request, **self._proof}
        if isinstance(said, Ack):
            if said.result is not None:
                body["result"] = Raw(codec.encode(said.result))
            path = "/ojs/v1/workers/ack"
        else:
            body |= msgspec.to_builtins(said)
            body.pop("keeps_checkpoint", None)
            if said.keeps_checkpoint:
                body["checkpoint"] = Raw(codec.encode(said.checkpoint))
            path = "/ojs/v1/workers/nack"
        answer = await self._transport.ask("POST", path, body)
        return msgspec.json.decode(answer, type=SettledAnswer)


def _invocation(job: RemoteJob, raw: Raw, task: str) -> Invocation:
    args: Any = msgspec.json.decode(job.args)
    whole = msgspec.json.decode(raw, type=_Whole).x_penstock_input == "whole" and len(args) == 1
    checkpoint = None
    if job.checkpoint is not None and "state" in job.checkpoint:
        checkpoint = Checkpoint(msgspec.json.decode(job.checkpoint["state"]), job.iteration)
    elif job.iteration:
        checkpoint = Checkpoint(None, job.iteration)
    trace = job.meta.get("traceparent")
    deadline = None
    if job.timeout_ms and job.started_at:
        deadline = instant(job.started_at) + timedelta(milliseconds=job.timeout_ms)
    return Invocation(
        protocol="ojs",
        task=task,
        work_id=job.id,
        body=args[0] if whole else args,
        attempt=job.attempt - job.returned,
        delivery=job.attempt,
        max_attempts=job.max_attempts,
        iteration=job.iteration,
        checkpoint=checkpoint,
        parent_results=tuple(msgspec.json.decode(job.parent_results) or ()),
        queue=job.queue,
        enqueued_at=instant(job.enqueued_at) if job.enqueued_at else None,
        deadline_at=deadline,
        trace=trace if isinstance(trace, str) else "",
        meta=job.meta,
        wire=job,
    )


def _settled(answer: SettledAnswer, returned: int, outcome: Outcome) -> Settled:
    attempt = (answer.attempt or (answer.job.attempt if answer.job else 0)) - returned
    match answer.state:
        case "completed":
            return Settled(SettledKind.SUCCEEDED, attempt=attempt)
        case "discarded":
            return Settled(SettledKind.PARKED, attempt=attempt)
        case "cancelled":
            return Settled(SettledKind.CANCELLED, attempt=attempt)
    at = instant(answer.next_attempt_at) if answer.next_attempt_at else datetime.now(UTC)
    match outcome:
        case Snoozed(after=after):
            return Settled(SettledKind.SNOOZED, datetime.now(UTC) + after, attempt)
        case Continued():
            return Settled(SettledKind.CONTINUED, at, attempt)
        case Interrupted():
            return Settled(SettledKind.RETURNED, at, attempt)
        case _:
            return Settled(SettledKind.RETRYING, at, attempt)
