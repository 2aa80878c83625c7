"""The books: what one instance knows of all jobs, and who wants to hear of changes.

They follow the bucket from its first record on, and hear of this instance's own writes at once.
Whoever must not miss what others wrote before waits at the `barrier`: one question to the
server, shared by all who ask while it is under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.broker.entry import Entry as Value
from penstock.broker.mirror import Mirror, MirrorBehind
from penstock.protocols.ojs.entry import Entry
from penstock.protocols.ojs.index import Index
from penstock.protocols.ojs.record import Record, decode_record
from penstock.protocols.ojs.refusal import Refusal, Refused
from penstock.protocols.ojs.room import WIPED, Room
from penstock.protocols.ojs.store import MARKER_TTL, TXN, Found, Store, verdict_of

__all__ = ["Books", "SharedBarrier"]

_log = logging.getLogger("penstock.ojs")
_MAX_KNOWN: Final = 20_000
_MAX_KNOWN_RECORD: Final = 16 << 10  # larger ones are read again when needed
_TIDY_EVERY: Final = 10_000
_LONG_AWAY_S: Final = MARKER_TTL.total_seconds() / 2

Listener = Callable[[str, Entry | None, Record | None], None]


class Books:
    """Index, records lately seen, and the mirror that feeds both."""

    def __init__(self, room: Room, *, follows: bool = True) -> None:
        """Without ``follows`` they stay empty: for producers, which need no index."""
        self.follows = follows
        self.index = Index()
        self.wrote: Callable[[Record], None] = _silent
        self.store = Store(room, heard=self._own, lost=self.lost, known=self.known)
        self._listeners: list[Listener] = []
        self._known: dict[str, Found] = {}
        self._txns: dict[str, int] = {}
        self._applied = 0
        self._room = room
        self._seen_at = 0.0
        self._rebuilding: asyncio.Task[None] | None = None
        self._follow()
        self.starting = True

    async def start(self, *, within: float = 120.0) -> None:
        """Follow the bucket; returns when all that it held is in the index."""
        if self.follows:
            await self._mirror.start()
            async with asyncio.timeout(within):
                await self._mirror.ready.wait()
            self._room.link.on_reconnect(self._came_back)
        self._seen_at = asyncio.get_running_loop().time()
        self.starting = False

    async def stop(self) -> None:
        self._room.link.forget(self._came_back)
        if self._rebuilding is not None:
            self._rebuilding.cancel()
            await asyncio.wait([self._rebuilding])
        await self._mirror.stop()

    async def rebuild(self) -> None:
        """Forget everything and read the bucket again: who was away for longer than markers of
        removed jobs are kept has missed that they are gone."""
        _log.info("this instance was away for long: its index is built again")
        self._room.link.forget(self._came_back)
        self.starting = True
        await self._mirror.stop()
        self.clear()
        self._follow()
        await self.start()

    async def barrier(self, timeout: float = 2.0) -> None:
        """Return when everything stored before the call is in the index."""
        if self.follows:
            await self._barrier.pass_through(timeout)
            self._seen_at = asyncio.get_running_loop().time()

    @property
    def alive(self) -> bool:
        return self._mirror.failed is None and not self.starting

    def listen(self, listener: Listener) -> None:
        """``listener(id, entry, record)`` after each change: no entry for a purged job, and no
        record where it is not at hand."""
        self._listeners.append(listener)

    # Feeding ----------------------------------------------------------------------------

    def heard(self, record: Record, revision: int) -> None:
        """A record was stored."""
        if not self.follows or not self.index.apply(record, revision):
            return
        self._remember(record, revision)
        self._tell(record.id, record)

    def _own(self, record: Record, revision: int) -> None:
        self.heard(record, revision)
        self.wrote(record)

    def lost(self, job_id: str, revision: int) -> None:
        """A record was purged."""
        self._known.pop(job_id, None)
        if self.follows and self.index.forget(job_id, revision):
            self._tell(job_id, None)

    def known(self, job_id: str) -> Found | None:
        return self._known.get(job_id)

    def committed(self, txn: str, at_ms: int) -> None:
        """A transaction is committed: its jobs are there now."""
        self.store.note_verdict(txn, committed=True)
        if not self.follows:
            return
        self._txns[txn] = at_ms
        for job_id in self.index.commit(txn):
            found = self._known.get(job_id)
            self._tell(job_id, found.record if found else None)

    @property
    def txns(self) -> dict[str, int]:
        """Verdicts that still lie in the bucket, with their age in milliseconds of Unix time."""
        return self._txns

    def clear(self) -> None:
        self.index.clear()
        self._known.clear()
        self._txns.clear()

    # Inside -----------------------------------------------------------------------------

    def _follow(self) -> None:
        self._mirror = Mirror.of_bucket(self._room.jobs, self._apply, reset=self.clear)
        self._barrier = SharedBarrier(self._mirror)

    def _came_back(self) -> None:
        """Connected again. What was seen last may be too long ago to go on from there."""
        away_s = asyncio.get_running_loop().time() - self._seen_at
        if away_s > _LONG_AWAY_S and (self._rebuilding is None or self._rebuilding.done()):
            self._rebuilding = asyncio.get_running_loop().create_task(
                self.rebuild(), name="ojs:rebuild"
            )
            self._rebuilding.add_done_callback(_retrieve)

    def _tell(self, job_id: str, record: Record | None) -> None:
        entry = self.index.get(job_id)
        if entry is None or entry.visible:
            for listener in self._listeners:
                listener(job_id, entry, record)

    def _apply(self, value: Value) -> None:
        key = value.key
        if key.startswith(TXN):
            self._apply_txn(key[len(TXN) :], value)
        elif key == WIPED:
            if not self.starting:
                self.clear()
        elif value.deleted:
            self.lost(key, value.revision)
        else:
            entry = self.index.get(key)
            if entry is None or entry.revision < value.revision:
                self._apply_record(value)
        self._applied += 1
        self._seen_at = asyncio.get_running_loop().time()
        if self._applied % _TIDY_EVERY == 0:
            self.index.reached(value.revision)

    def _apply_record(self, value: Value) -> None:
        try:
            record = decode_record(value.value)
        except msgspec.DecodeError as error:
            _log.error("the record at %s cannot be read: %s", value.key, error)
            return
        if record.id == value.key:
            self.heard(record, value.revision)

    def _apply_txn(self, txn: str, value: Value) -> None:
        if value.deleted:
            self._txns.pop(txn, None)
            self.index.drop_txn(txn)
            return
        try:
            verdict = verdict_of(value.value)
        except msgspec.DecodeError as error:
            _log.error("the verdict on %s cannot be read: %s", txn, error)
            return
        self.store.note_verdict(txn, verdict.committed)
        if verdict.committed:
            self.committed(txn, verdict.at_ms)
        else:
            self._txns[txn] = verdict.at_ms

    def _remember(self, record: Record, revision: int) -> None:
        known = self._known
        known.pop(record.id, None)
        if record.is_terminal or self.starting or len(bytes(record.job.args)) > _MAX_KNOWN_RECORD:
            return
        known[record.id] = Found(record, revision)
        if len(known) > _MAX_KNOWN:
            del known[next(iter(known))]


def _silent(_record: Record) -> None:
    """Nobody wants to hear of what this instance writes."""


class SharedBarrier:
    """One question under way and one to come: a caller joins the next that has not been asked
    yet, so that what was stored before its call is covered."""

    def __init__(self, mirror: Mirror[Value]) -> None:
        self._mirror = mirror
        self._next: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None

    async def pass_through(self, timeout: float) -> None:
        task = self._next
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(timeout), name="ojs:barrier")
            task.add_done_callback(_retrieve)
            self._next = task
        try:
            await asyncio.shield(task)
        except MirrorBehind as error:
            raise Refused(Refusal("backend_timeout", error.message, retry_after_s=1)) from error

    async def _ask(self, timeout: float) -> None:
        before, me = self._running, asyncio.current_task()
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = me, None
        try:
            await self._mirror.barrier(timeout)
        finally:
            if self._running is me:
                self._running = None


def _retrieve(task: asyncio.Task[None]) -> None:
    """Whoever asked may be gone by now; its failure is nobody's then."""
    if not task.cancelled():
        task.exception()
