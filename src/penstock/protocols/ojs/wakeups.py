"""Wake-ups: a message in the stream `OJS` for each job that becomes available.

They carry no truth. Whoever follows the records knows of every job without them, so that losing
one, doubling one or purging the stream changes nothing but the time it takes; they are there for
those who watch the stream, and so that its consumers show how much work waits. The steward takes
them off: it holds the message of a job while the job waits or runs, and acknowledges it when the
record says that the job has moved on. The claim keeps where that is done, so whichever instance
settles the job can do it. What the records have and the stream has lost is published again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.broker.errors import ConsumerGone, LinkClosed, LinkError
from penstock.broker.ownership import Ownership
from penstock.broker.puller import Message, Puller
from penstock.broker.streams import ApiError
from penstock.core.errors import PenstockError
from penstock.protocols.ojs.entry import Entry
from penstock.protocols.ojs.names import STREAM, consumer_name, queue_subject
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.shared import Shared

__all__ = ["WakeUp", "WakeUps", "acknowledge", "publish", "publish_news"]

_log = logging.getLogger("penstock.ojs")
_HELD: Final = frozenset({"available", "active"})
_MAX_HELD: Final = 2_000  # per queue; the rest stays in the stream until there is room
_WAIT_S: Final = 20.0
_PAUSE_S: Final = 0.5
_AGAIN: Final = 200
_RECENT_MS: Final = 5_000


class WakeUp(Struct, frozen=True):
    """What a wake-up says: this job, at this step of its life, became available."""

    job_id: str
    n: int
    queue: str
    type: str


_decode: Final = msgspec.json.Decoder(WakeUp).decode


def publish(shared: Shared, record: Record, again: str = "") -> None:
    """Send the wake-up of an available job, without waiting; it may get lost."""
    job = record.job
    said = WakeUp(job.id, record.n, job.queue, job.type)
    headers = f"Nats-Msg-Id: {job.id}:{record.n}{again}\r\n".encode()
    with contextlib.suppress(LinkError):
        shared.room.publisher.send(
            queue_subject(job.queue).encode(), msgspec.json.encode(said), headers=headers
        )


def publish_news(shared: Shared, record: Record) -> None:
    """As `publish`, if the last step of the record is that its job became available."""
    visible = not (record.staged or record.txn)
    if record.state == "available" and visible and record.tail[-1].kind != "prioritised":
        publish(shared, record)


def acknowledge(shared: Shared, record: Record | None) -> None:
    """Take off the wake-up of a job that was settled, where its claim says that is done."""
    held = record.held if record is not None else None
    if held is not None and held.wake_up:
        with contextlib.suppress(LinkError):
            shared.room.link.publish(held.wake_up.encode(), b"+ACK")


class WakeUps:
    """The steward's part: takes wake-ups off the stream, one puller per queue."""

    def __init__(self, shared: Shared, steward: Ownership) -> None:
        self._shared = shared
        self._steward = steward
        self._held: dict[str, Message] = {}
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._pullers: dict[str, asyncio.Task[None]] = {}
        self._less: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="ojs:wake-ups")

    async def stop(self) -> None:
        """Let go of everything: what is held is delivered to the next steward. Safe to repeat."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._let_go()

    def subject_of(self, job_id: str) -> str:
        """Where the wake-up of a job is acknowledged; empty if it is not held here."""
        message = self._held.get(job_id)
        return message.reply.decode() if message is not None else ""

    def heard(self, job_id: str, entry: Entry | None, _record: Record | None) -> None:
        """A job changed: one that neither waits nor runs needs its wake-up no more."""
        if entry is None or entry.state not in _HELD:
            self._drop(job_id)
        elif entry.queue not in self._pullers and self._steward.owned and self._task is not None:
            self._open(entry.queue)

    async def republish(self) -> None:
        """Make up for wake-ups that were lost: of jobs that have waited for a while, and whose
        message we do not hold where the stream has none that we do not hold."""
        if not self._steward.owned:
            return
        shared, index = self._shared, self._shared.books.index
        for queue in index.queues():
            lost = self._without_message(queue)
            if not lost or await self._pending(queue) > self._counts[queue]:
                continue
            again = f":{shared.now_ms}"
            for job_id in lost:
                found = shared.books.known(job_id) or await shared.books.store.read(job_id)
                if found is not None and found.record.state == "available":
                    publish(shared, found.record, again)

    # Inside -----------------------------------------------------------------------------

    def _without_message(self, queue: str) -> list[str]:
        """Jobs at the head of a queue that have waited longer than a message is under way."""
        shared = self._shared
        long_ago = shared.now_ms - shared.options.patience.total_seconds() * 1000
        return [
            job_id
            for job_id in shared.books.index.first_ready(queue, _AGAIN)
            if job_id not in self._held
            and (entry := shared.books.index.get(job_id)) is not None
            and entry.stamp_ms <= long_ago
        ]

    async def _run(self) -> None:
        while True:
            await self._steward.acquired.wait()
            for queue in self._shared.books.index.queues():
                self._open(queue)
            await self._steward.lost.wait()
            await self._let_go()

    async def _let_go(self) -> None:
        pullers, self._pullers = list(self._pullers.values()), {}
        for puller in pullers:
            puller.cancel()
        if pullers:
            await asyncio.wait(pullers)
        self._held.clear()
        self._counts.clear()

    def _open(self, queue: str) -> None:
        if queue not in self._pullers:
            self._pullers[queue] = asyncio.get_running_loop().create_task(
                self._pull(queue), name=f"ojs:wake-ups:{queue}"
            )

    async def _pull(self, queue: str) -> None:
        room = self._shared.room
        while True:
            try:
                name = await room.ensure_consumer(queue)
                puller = await Puller.open(room.link, STREAM, name)
                try:
                    await self._take(queue, puller)
                finally:
                    await puller.stop()
            except LinkClosed:
                return
            except (ConsumerGone, LinkError, ApiError, PenstockError) as error:
                room.forget_consumers()
                _log.debug("wake-ups of %s: %s", queue, error)
                await asyncio.sleep(_PAUSE_S)

    async def _take(self, queue: str, puller: Puller) -> None:
        less = self._less[queue]
        while True:
            less.clear()
            room = _MAX_HELD - self._counts[queue]
            if room <= 0:
                await less.wait()
                continue
            for message in await puller.fetch(room, _WAIT_S):
                self._receive(queue, message)

    def _receive(self, queue: str, message: Message) -> None:
        try:
            said = _decode(message.payload)
        except msgspec.DecodeError:
            message.term("unreadable")
            return
        entry = self._shared.books.index.get(said.job_id)
        if entry is None and self._is_recent(message):
            pass  # its record is on the way to us
        elif entry is None or entry.state not in _HELD or entry.queue != queue:
            self._drop(said.job_id)
            message.ack()
            return
        before = self._held.get(said.job_id)
        if before is None:
            self._counts[queue] += 1
        elif before.stream_seq != message.stream_seq:
            before.ack()
        self._held[said.job_id] = message
        self._shared.bells.ring(queue)

    def _is_recent(self, message: Message) -> bool:
        return self._shared.now_ms - message.stored_at_ns // 1_000_000 < _RECENT_MS

    def _drop(self, job_id: str) -> None:
        message = self._held.pop(job_id, None)
        if message is None:
            return
        with contextlib.suppress(LinkError, msgspec.DecodeError):
            queue = _decode(message.payload).queue
            self._counts[queue] -= 1
            self._less[queue].set()
            message.ack()

    async def _pending(self, queue: str) -> int:
        """How many wake-ups of a queue the stream still has."""
        try:
            info: Any = await self._shared.room.js.consumer_info(STREAM, consumer_name(queue))
        except (ApiError, LinkError):
            return 0
        return int(info.num_pending + info.num_ack_pending)
