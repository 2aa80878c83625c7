"""Admission: from delivered messages to jobs that may run.

A first delivery writes its processing record create-only, all of a batch in one breath;
who finds the key taken, and every redelivery, reads the record first and decides by it.
What cannot be read at all is terminated at once, with the reason, and leaves no record.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.broker.bucket import Entry, Operation
from penstock.broker.bucket import Outcome as Written
from penstock.broker.errors import LinkError
from penstock.broker.publisher import Stored, Unknown
from penstock.broker.puller import Message
from penstock.broker.streams import ApiError
from penstock.core import points
from penstock.core.codec import JsonError
from penstock.core.invocation import Checkpoint
from penstock.protocols.natq.records import Records, ack_and_drop, lost_race
from penstock.protocols.natq.rules import (
    FAULT_DELAY,
    AlreadyDone,
    Run,
    SomeoneElses,
    on_delivery,
)
from penstock.protocols.natq.wire import INVALID_JSON, BadRunId, Input, Output, parse_input

if TYPE_CHECKING:
    from penstock.broker.checkpoints import Checkpoints
    from penstock.protocols.natq.room import Room

__all__ = ["Admission", "Admitted"]

_log = logging.getLogger("penstock.natq")


class Admitted:
    """A message that may run now, with what its record says."""

    __slots__ = ("attempt", "checkpoint", "given", "message", "revision")

    def __init__(
        self,
        message: Message,
        given: Input,
        *,
        attempt: int = 1,
        revision: int | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.message = message
        self.given = given
        self.attempt = attempt
        self.revision = revision
        self.checkpoint = checkpoint


class Admission:
    """Decides for one task which messages run. ``log_ids`` go on every line it writes."""

    def __init__(
        self,
        room: Room,
        task_id: str,
        records: Records,
        checkpoints: Checkpoints,
        log_ids: dict[str, str],
    ) -> None:
        self._room = room
        self._task_id = task_id
        self._records = records
        self._checkpoints = checkpoints
        self._ids = log_ids
        self._compat = room.options.compat
        self._rerun = room.options.rerun_duplicates

    async def admit(self, messages: Sequence[Message]) -> list[Admitted]:
        """Those of ``messages`` that are to run; all others have been settled."""
        admitted: list[Admitted] = []
        again: list[tuple[Message, Input]] = []
        begun: list[tuple[Message, Input, asyncio.Future[Written]]] = []
        unsure: list[tuple[Message, Input]] = []
        link = self._room.link
        for message in messages:
            given = self._read(message)
            if given is None:
                continue
            delivery = message.delivery
            if delivery.delivered > 1 or self._rerun:
                again.append((message, given))
                continue
            if not link.has_room:
                await link.room()
            begun.append((message, given, self._records.begin(given.run_id, delivery.stream_seq)))
        for message, given, answer in begun:
            written = await answer
            if type(written) is Stored:
                admitted.append(Admitted(message, given, revision=written.seq))
            else:
                (unsure if type(written) is Unknown else again).append((message, given))
        if unsure:
            admitted += await self._ask_back(unsure, again)
        if again:
            admitted += await self._resume_all(again)
        if points.armed:
            points.reach("natq.begun")
        return admitted

    def _read(self, message: Message) -> Input | None:
        """The input, or ``None`` when it can never be one: then the message is terminated."""
        try:
            given = parse_input(
                message.payload, compat=self._compat, make_id=lambda: _run_id_of(message)
            )
        except JsonError as error:
            self._refuse(message, INVALID_JSON, str(error))
        except BadRunId as error:
            self._refuse(message, error.message, error.remedy)
        else:
            return given
        return None

    def _refuse(self, message: Message, reason: str, detail: str) -> None:
        _log.error("job terminated: %s (%s)", reason, detail, extra=self._ids)
        message.term(reason)
        if points.armed:
            points.reach("natq.refused")

    async def _ask_back(
        self, unsure: Sequence[tuple[Message, Input]], again: list[tuple[Message, Input]]
    ) -> list[Admitted]:
        """Those whose first record was stored though its answer was lost; the rest is for later."""
        answers = await asyncio.gather(
            *(self._records.confirmed(one.run_id, message.stream_seq) for message, one in unsure)
        )
        admitted = []
        for (message, given), written in zip(unsure, answers, strict=True):
            if isinstance(written, Stored):
                admitted.append(Admitted(message, given, revision=written.seq))
            else:
                again.append((message, given))
        return admitted

    async def _resume_all(self, again: Iterable[tuple[Message, Input]]) -> list[Admitted]:
        resumed = await asyncio.gather(*(self._resume(*one) for one in again))
        return [one for one in resumed if one is not None]

    async def _resume(self, message: Message, given: Input) -> Admitted | None:
        """Decide by the record about a message that was here before, or whose key is taken."""
        ids = {**self._ids, "runId": given.run_id}
        try:
            record, entry = await self._record_of(given.run_id)
            alive = await self._owner_alive(record, message)
        except LinkError as error:  # it may have ended before: not run on a guess
            _log.warning("no record could be read, trying later: %s", error.message, extra=ids)
            message.nak(FAULT_DELAY)
            return None
        except ApiError as error:
            _log.error("no record can be read, running without: %s", error.message, extra=ids)
            return Admitted(message, given, attempt=message.delivered)
        if points.armed:
            points.reach("natq.read")
        decision = on_delivery(
            record,
            None if entry is None else entry.revision,
            delivery=message.delivered,
            seq=message.stream_seq,
            erased_after=_dropped_after(entry, message),
            owner_alive=alive,
            rerun_duplicates=self._rerun,
        )
        match decision:
            case Run():
                return await self._run_later_if_cut_off(message, given, decision)
            case AlreadyDone(output=output):
                self._settle_as_before(message, given, output)
            case SomeoneElses():
                self._tell(message, given, "acked without running: its run id is alive elsewhere")
                message.ack()
        return None

    async def _record_of(self, run_id: str) -> tuple[Output | None, Entry | None]:
        try:
            return await self._records.read(run_id)
        except ApiError as error:
            if not error.missing:
                raise
        await self._records.restore()
        return None, None

    async def _run_later_if_cut_off(
        self, message: Message, given: Input, decision: Run
    ) -> Admitted | None:
        try:
            return await self._run(message, given, decision)
        except LinkError as error:
            ids = {**self._ids, "runId": given.run_id}
            _log.warning("it cannot begin, trying later: %s", error.message, extra=ids)
            message.nak(FAULT_DELAY)
            return None

    async def _run(self, message: Message, given: Input, decision: Run) -> Admitted | None:
        known = message.delivered > 1 or decision.revision is not None
        kept = await self._checkpoint(given.run_id) if known else None
        attempt = decision.attempt if decision.attempt > 1 else None
        written = await self._records.begun(
            given.run_id,
            message.stream_seq,
            attempt=attempt,
            revision=0 if decision.revision is None else decision.revision,
        )
        if isinstance(written, Stored):
            revision: int | None = written.seq
        elif lost_race(written):
            self._tell(message, given, "its record moved while it was read; it will come back")
            message.nak(FAULT_DELAY)
            return None
        else:  # as the protocol says: a failed put is logged, and the job runs
            ids = {**self._ids, "runId": given.run_id}
            _log.error("the processing record was not written: %s", written, extra=ids)
            revision = None
        return Admitted(
            message, given, attempt=decision.attempt, revision=revision, checkpoint=kept
        )

    async def _checkpoint(self, run_id: str) -> Checkpoint | None:
        try:
            return await self._checkpoints.load(self._task_id, run_id)
        except ApiError as error:  # such as a bucket that was removed
            ids = {**self._ids, "runId": run_id}
            _log.warning("the checkpoint cannot be read: %s", error.message, extra=ids)
            return None

    def _settle_as_before(self, message: Message, given: Input, output: object) -> None:
        status = getattr(output, "status", 200)
        self._tell(message, given, f"not run again: it ended before with status {status}")
        if status >= 300:
            message.term(f"ended before with status {status}")
            return
        if given.drop_result and output is not None:
            self._room.background(ack_and_drop(message, self._records, given.run_id))
        else:
            message.ack()

    async def _owner_alive(self, record: object, message: Message) -> bool:
        """Does the message that the record names still exist? Asked only when it is another."""
        seq = getattr(record, "seq", None)
        if not isinstance(seq, int) or seq == message.stream_seq:
            return True
        stored = await self._room.jetstream.get_message(self._room.options.stream, seq)
        return stored is not None

    def _tell(self, message: Message, given: Input, what: str) -> None:
        ids = {**self._ids, "runId": given.run_id}
        _log.info("job %d %s", message.stream_seq, what, extra=ids)


def _dropped_after(entry: Entry | None, message: Message) -> bool:
    """Was the result dropped after this message was stored? Then the job has run.

    A purge says only that an operator withdrew the record.
    """
    if entry is None or entry.operation is not Operation.DEL:
        return False
    return entry.created_at_ns > message.stored_at_ns


def _run_id_of(message: Message) -> str:
    """A UUIDv7 for a job without a run id: the same on every delivery of the message."""
    seed = f"{message.stream}:{message.stream_seq}:{message.stored_at_ns}".encode()
    tail = int.from_bytes(hashlib.blake2b(seed, digest_size=10).digest(), "big")
    millis = (message.stored_at_ns // 1_000_000) & ((1 << 48) - 1)
    value = (millis << 80) | tail
    value = (value & ~(0xF << 76)) | (7 << 76)
    value = (value & ~(0x3 << 62)) | (2 << 62)
    return str(UUID(int=value))
