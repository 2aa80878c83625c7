"""The projector: tells every step of every job, once, in order, whoever took it.

One instance at a time follows the records and publishes the steps on them that it has not told
yet. The id of an event is computed from job and step, so that after a take-over what is told again
is told under the same id: at least once, in order per job, and complete up to the steps that
a record remembers (eight, all of them made while nobody was projecting).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct

from penstock.broker.errors import LinkClosed, LinkError
from penstock.broker.follower import Follower
from penstock.broker.ownership import Ownership
from penstock.broker.publisher import Stored
from penstock.broker.puller import Message
from penstock.broker.streams import ApiError
from penstock.core.errors import PenstockError
from penstock.protocols.ojs.names import event_subject
from penstock.protocols.ojs.record import Record, decode_record
from penstock.protocols.ojs.room import WIPED
from penstock.protocols.ojs.shared import Shared
from penstock.protocols.ojs.store import TXN, verdict_of
from penstock.protocols.ojs.told import events_of

__all__ = ["Projector"]

_log = logging.getLogger("penstock.ojs")
_CURSOR: Final = "cursor.projector"
_MOST: Final = 500
_MAX_TOLD: Final = 200_000
_SAVE_EVERY_S: Final = 1.0


class Cursor(Struct, frozen=True):
    """All records up to ``seq`` have been told, the last of them stored at ``at_ms``."""

    seq: int = 0
    at_ms: int = 0


class Projector:
    def __init__(self, shared: Shared, steward: Ownership) -> None:
        self._shared = shared
        self._bucket = shared.room.queues
        self._ownership = steward
        self._task: asyncio.Task[None] | None = None
        self._told: dict[str, int] = {}
        self._pending: dict[str, list[tuple[int, Record]]] = {}
        self._cursor = Cursor()
        self._saved_at = 0.0

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="ojs:projector")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            await self._ownership.acquired.wait()
            try:
                await self._project()
            except LinkClosed:
                return
            except (PenstockError, TimeoutError) as error:
                _log.warning("events stopped for a moment: %s", error)
                await asyncio.sleep(0.2)

    async def _project(self) -> None:
        """Tell everything from the cursor on, for as long as it is ours to tell."""
        self._told.clear()
        self._pending.clear()
        kept = await self._bucket.get(_CURSOR, leader=True)
        self._cursor = (
            Cursor()
            if kept is None or kept.deleted
            else msgspec.json.decode(kept.value, type=Cursor)
        )
        jobs = self._shared.room.jobs
        start = self._cursor.seq + 1
        follower = Follower(jobs.link, jobs.stream, filters=[f"{jobs.prefix}>"], start=start)
        await follower.open()
        generation = follower.generation
        try:
            while self._ownership.owned:
                batch = await follower.fetch(_MOST, 1.0)
                if follower.generation != generation:
                    generation = follower.generation
                    self._pending.clear()
                if batch:
                    await self._publish([e for m in batch for e in self._events(m)])
                    self._advance(batch[-1])
                await self._save()
        finally:
            await follower.stop()

    def _events(self, message: Message) -> Iterator[tuple[bytes, bytes, bytes]]:
        """What one stored record has to tell: (subject, id, payload)."""
        key = message.subject[len(self._shared.room.jobs.prefix) :].decode()
        if not message.payload or key == WIPED:
            return
        try:
            if key.startswith(TXN):
                yield from self._committed(key[len(TXN) :], message)
                return
            record = decode_record(message.payload)
        except msgspec.DecodeError:
            return
        if record.txn:
            self._pending.setdefault(record.txn, []).append((message.stream_seq, record))
        elif not record.staged:
            yield from self._of(record)

    def _committed(self, txn: str, message: Message) -> Iterator[tuple[bytes, bytes, bytes]]:
        waiting = self._pending.pop(txn, [])
        if verdict_of(message.payload).committed:
            for _, record in waiting:
                yield from self._of(record)

    def _of(self, record: Record) -> Iterator[tuple[bytes, bytes, bytes]]:
        after = self._told.pop(record.id, None)
        if after is None:
            after = self._surely_told(record)
        self._told[record.id] = record.n
        if len(self._told) > _MAX_TOLD:
            del self._told[next(iter(self._told))]
        if record.n > after:
            for event in events_of(record, after):
                subject = event_subject(event.type).encode()
                yield subject, event.id.encode(), msgspec.json.encode(event)

    def _surely_told(self, record: Record) -> int:
        """The last step that was told before we began, well before the cursor's time."""
        safe_ms = self._cursor.at_ms - 10_000
        return max((step.n for step in record.tail if step.at_ms < safe_ms), default=0)

    async def _publish(self, events: list[tuple[bytes, bytes, bytes]]) -> None:
        """Publish in order; what was not answered is sent again under its id."""
        room, left = self._shared.room, events
        for _ in range(5):
            answers = []
            for subject, event_id, payload in left:
                await room.link.room()
                headers = b"Nats-Msg-Id: %b\r\n" % event_id
                answers.append(room.publisher.send(subject, payload, headers=headers))
            results = [await answer for answer in answers]
            left = [e for e, r in zip(left, results, strict=True) if not isinstance(r, Stored)]
            if not left:
                return
            await asyncio.sleep(0.2)
        raise TimeoutError(f"{len(left)} events could not be published")

    def _advance(self, last: Message) -> None:
        oldest = min((seq for m in self._pending.values() for seq, _ in m), default=0)
        seq = oldest - 1 if oldest else last.stream_seq
        if seq > self._cursor.seq:
            self._cursor = Cursor(seq, last.stored_at_ns // 1_000_000)
        if len(self._pending) > 10_000:  # verdicts that will never come
            del self._pending[next(iter(self._pending))]

    async def _save(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._saved_at < _SAVE_EVERY_S or not self._cursor.seq:
            return
        self._saved_at = now
        with contextlib.suppress(LinkError, ApiError):
            await self._bucket.put(_CURSOR, msgspec.json.encode(self._cursor))
