"""One natq job in hand: the `Delivery` that the runtime renews and settles.

The lease is inferred: JetStream never answers a heartbeat. The real fence is the revision
of this job's processing record: whoever took over has moved it, and our write is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.broker.errors import LinkError
from penstock.broker.frames import parse_headers
from penstock.broker.publisher import Stored
from penstock.core import points
from penstock.core.codec import JsonError
from penstock.core.context import LeaseLost
from penstock.core.delivery import (
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
from penstock.core.invocation import Checkpoint, Invocation
from penstock.core.lease import Lease
from penstock.core.outcome import Outcome
from penstock.protocols.natq.admission import Admitted
from penstock.protocols.natq.dead import bury
from penstock.protocols.natq.records import ack_and_drop, lost_race, too_large
from penstock.protocols.natq.results import FinalRecord, final_record, forget_large, oversize
from penstock.protocols.natq.rules import (
    FAULT_DELAY,
    Abandon,
    Again,
    Finish,
    GiveBack,
    Postpone,
    settlement,
)

if TYPE_CHECKING:
    from penstock.broker.bucket import Outcome as Written
    from penstock.protocols.natq.wire import Output
    from penstock.protocols.natq.worker import JobSource

__all__ = ["Job"]

_log = logging.getLogger("penstock.natq")
_RENEWED = Renewed()


class Job:
    """A job that may run: its message, its record's revision, and how to settle both."""

    __slots__ = ("_drop", "_kept", "_message", "_revision", "_source", "invocation")

    def __init__(self, source: JobSource, admitted: Admitted) -> None:
        message, given = admitted.message, admitted.given
        delivery = message.delivery
        self._source = source
        self._message = message
        self._revision = admitted.revision
        self._drop = given.drop_result
        self._kept = kept = admitted.checkpoint
        self.invocation = Invocation(
            protocol="natq",
            task=source.task,
            work_id=given.run_id,
            body=given.body,
            raw=message.payload,
            attempt=admitted.attempt,
            delivery=delivery.delivered,
            max_attempts=source.policy.max_attempts,
            iteration=0 if kept is None else kept.iteration,
            checkpoint=kept,
            queue=source.task_id,
            enqueued_at=datetime.fromtimestamp(delivery.stored_at_ns / 1e9, UTC),
            trace=_trace_of(message.headers),
            wire=given,
        )

    @property
    def lease(self) -> Lease:
        return self._source.lease

    async def renew(self) -> Renewal:
        if not self._source.room.link.is_connected:  # it would be kept and sent too late
            return Unknown("not connected")
        try:
            self._message.progress()
        except LinkError as error:
            return Unknown(error.message)
        return _RENEWED

    async def settle(self, outcome: Outcome) -> Settlement:
        source, invocation = self._source, self.invocation
        if source.check is not None:
            outcome = source.check.judged(outcome)
        decision = settlement(
            outcome,
            task_id=source.task_id,
            run_id=invocation.work_id,
            attempt=invocation.attempt,
            policy=source.policy,
            dice=source.dice,
            max_error_chars=source.options.max_error_chars,
        )
        if points.armed:
            points.reach("natq.handled")
        match decision:
            case Finish():
                return await self._finish(decision)
            case Again(delay=delay):
                return self._let_go(SettledKind.RETRYING, delay)
            case Postpone():
                return await self._postpone(decision)
            case GiveBack():
                return await self._hand_back(SettledKind.RETURNED, timedelta(0))
            case Abandon(reason=reason):
                return Gone(reason)

    async def save(self, checkpoint: Any) -> None:
        await self._keep(Checkpoint(checkpoint, self.invocation.iteration))

    async def note(self, progress: Progress) -> None:  # noqa: ARG002 - natq has no place for it
        return

    async def _finish(self, decision: Finish) -> Settlement:
        source, run_id = self._source, self.invocation.work_id
        try:
            final = await final_record(decision.output, source.room, self._revision)
        except PenstockError as error:  # a large result found no place
            _log.error(
                "the result was not kept: %s", error, extra={**source.log_ids, "runId": run_id}
            )
            return self._let_go(SettledKind.RETRYING, FAULT_DELAY)
        ack, buried = decision.ack and final.fits, False
        if decision.dead:
            attempt = self.invocation.attempt
            buried = await bury(source.room, self._message, decision.output, attempt)
        written = await self._write(final, drops=ack and self._drop)
        if too_large(written) and final.fits:  # a limit that we did not know
            final, ack = oversize(decision.output, len(final.record)), False
            written = await self._write(final, drops=False)
        if not isinstance(written, Stored):
            if lost_race(written):
                await forget_large(final.output, source.room)
                return Gone(f"another worker wrote the record of {run_id}")
            if not self._give_up_on_result(written):
                return self._later(SettledKind.RETRYING, FAULT_DELAY)
        if points.armed:
            points.reach("natq.finished")
        await self._close(ack, final.output)
        kind = SettledKind.SUCCEEDED if ack else SettledKind.PARKED
        return Settled(kind, attempt=self.invocation.attempt, dead_lettered=buried)

    def _write(self, final: FinalRecord, *, drops: bool) -> Coroutine[Any, Any, Written]:
        return self._source.records.finish(
            self.invocation.work_id,
            final.record,
            revision=self._revision,
            seq=self._message.stream_seq,
            attempt=self.invocation.attempt,
            to_be_dropped=drops,
        )

    async def _close(self, ack: bool, output: Output) -> None:
        """The record is final: let go of the message, then of what was kept for this run."""
        run_id, reason = self.invocation.work_id, output.error
        if ack and self._drop:
            await ack_and_drop(self._message, self._source.records, run_id)
            await forget_large(output, self._source.room)
        else:
            if ack:
                self._message.ack()
            else:
                self._message.term(reason if isinstance(reason, str) else "")
            if points.armed:
                points.reach("natq.acked")
        if self._kept is not None:
            await self._forget_checkpoint(run_id)

    async def _forget_checkpoint(self, run_id: str) -> None:
        try:
            await self._source.checkpoints.forget(self._source.task_id, run_id)
            if points.armed:
                points.reach("natq.forgotten")
        except PenstockError as error:  # it expires by itself
            ids = {**self._source.log_ids, "runId": run_id}
            _log.warning("a checkpoint was left behind: %s", error.message, extra=ids)

    def _give_up_on_result(self, written: object) -> bool:
        """The record could not be written for seconds: ack all the same (the protocol's way)?"""
        ids = {**self._source.log_ids, "runId": self.invocation.work_id}
        _log.error("the final record was not written: %s", written, extra=ids)
        if self._source.options.on_lost_result == "ack":
            return True
        self._message.nak(FAULT_DELAY)
        return False

    async def _postpone(self, decision: Postpone) -> Settlement:
        invocation = self.invocation
        iteration = invocation.iteration + (1 if decision.iterates else 0)
        if decision.checkpoint is not None or decision.iterates:
            value = decision.checkpoint
            if value is None and self._kept is not None:  # what was saved last goes on
                value = self._kept.value
            try:
                await self._keep(Checkpoint(value, iteration))
            except LeaseLost as error:
                return Gone(str(error))
            except (PenstockError, JsonError) as error:
                ids = {**self._source.log_ids, "runId": invocation.work_id}
                _log.error("the checkpoint was not kept: %s", error, extra=ids)
                return self._let_go(SettledKind.RETRYING, FAULT_DELAY)
        kind = SettledKind.CONTINUED if decision.iterates else SettledKind.SNOOZED
        return await self._hand_back(kind, decision.delay)

    async def _hand_back(self, kind: SettledKind, delay: timedelta) -> Settlement:
        """Take this attempt off the record, then let the message go."""
        invocation = self.invocation
        if self._revision is not None:  # else no record counts this attempt
            written = await self._source.records.begun(
                invocation.work_id,
                self._message.stream_seq,
                attempt=invocation.attempt - 1,
                revision=self._revision,
            )
            if lost_race(written):
                return Gone(f"another worker wrote the record of {invocation.work_id}")
            if points.armed:
                points.reach("natq.returned")
        return self._let_go(kind, delay)

    def _let_go(self, kind: SettledKind, delay: timedelta) -> Settled:
        self._message.nak(delay)
        if points.armed:
            points.reach("natq.let_go")
        return self._later(kind, delay)

    async def _keep(self, checkpoint: Checkpoint) -> None:
        self._kept = checkpoint
        source, run_id = self._source, self.invocation.work_id
        await source.checkpoints.save(source.task_id, run_id, checkpoint, fence=self._revision or 0)
        if points.armed:
            points.reach("natq.checkpointed")

    def _later(self, kind: SettledKind, delay: timedelta) -> Settled:
        return Settled(kind, datetime.now(UTC) + delay, self.invocation.attempt)


def _trace_of(headers: bytes | None) -> str:
    if headers is None or b"traceparent" not in headers:  # the rule, and cheap to see
        return ""
    return parse_headers(headers).get("traceparent", "")
