"""The store: job records in their bucket, each change one compare-and-set.

A change is decided by a pure function on the record as it is; if somebody else wrote first, the
record is read again and decided again, so the state machine and never the revision says 409.
A write whose answer was lost is settled by reading: what it left on the record tells whose
it was. What cannot be told within the deadline is said as it is: `backend_timeout`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final

import msgspec
from msgspec import Struct

from penstock.broker.bucket import WRONG_REVISION
from penstock.broker.entry import Entry as Value
from penstock.broker.errors import LinkError
from penstock.broker.publisher import Refused as WriteRefused
from penstock.broker.publisher import Stored, Unknown, Written
from penstock.broker.streams import ApiError
from penstock.core import points
from penstock.protocols.ojs.names import JOB_ID
from penstock.protocols.ojs.record import Record, decode_record, encode_record
from penstock.protocols.ojs.refusal import Refusal, Refused, not_found
from penstock.protocols.ojs.room import Room

__all__ = ["MARKER_TTL", "TXN", "Decide", "Found", "Store", "Verdict", "unavailable"]

_log = logging.getLogger("penstock.ojs")
TXN: Final = "txn."
_TRIES: Final = 8
MARKER_TTL: Final = timedelta(seconds=60)

Decide = Callable[[Record], Record | Refusal]


class Found(Struct, frozen=True):
    """A record and the revision under which it lies."""

    record: Record
    revision: int


class Verdict(Struct, frozen=True):
    """What became of a transaction: all its jobs count, or none of them ever did."""

    committed: bool
    at_ms: int = 0


_verdicts: Final = msgspec.json.Decoder(Verdict)


class Store:
    """``heard`` is told of every record that this store has written, ``known`` may answer with
    the record as last seen, which saves reading it; neither is believed over the bucket."""

    def __init__(
        self,
        room: Room,
        *,
        heard: Callable[[Record, int], None],
        lost: Callable[[str, int], None],
        known: Callable[[str], Found | None],
    ) -> None:
        self._bucket = room.jobs
        self._room = room
        self._heard = heard
        self._lost = lost
        self._known = known
        self._verdicts: dict[str, bool] = {}

    # Reading ----------------------------------------------------------------------------

    async def read(self, job_id: str) -> Found | None:
        """The record as it is now, staged or not; ``None`` if there is none."""
        if not JOB_ID.fullmatch(job_id):
            return None  # no job has such an id, and not every text can be a key
        try:
            value = await self._bucket.get(job_id, leader=self._room.replicated)
        except (LinkError, ApiError) as error:
            raise unavailable(error) from error
        return found_in(value)

    async def read_many(self, job_ids: Iterable[str]) -> dict[str, Found]:
        try:
            values = await self._bucket.get_many(job_ids, leader=self._room.replicated)
        except (LinkError, ApiError) as error:
            raise unavailable(error) from error
        return {key: found for key, value in values.items() if (found := found_in(value))}

    async def visible(self, job_id: str) -> Found | None:
        """As `read`, but jobs that are not committed (yet) do not exist."""
        found = await self.read(job_id)
        return found if found is not None and await self.is_visible(found.record) else None

    async def is_visible(self, record: Record) -> bool:
        if record.staged:
            return False
        return not record.txn or (await self.verdict(record.txn)) is True

    async def verdict(self, txn: str) -> bool | None:
        """Whether a transaction is committed; ``None`` while nobody has decided."""
        known = self._verdicts.get(txn)
        if known is not None:
            return known
        try:
            value = await self._bucket.get(TXN + txn, leader=self._room.replicated)
        except (LinkError, ApiError) as error:
            raise unavailable(error) from error
        if value is None or value.deleted:
            return None
        committed = _verdicts.decode(value.value).committed
        self.note_verdict(txn, committed)
        return committed

    def note_verdict(self, txn: str, committed: bool) -> None:
        if len(self._verdicts) > 10_000:
            self._verdicts.clear()
        self._verdicts[txn] = committed

    # Writing ----------------------------------------------------------------------------

    async def create(self, record: Record) -> int | None:
        """Write the first record of a job; its revision, or ``None`` when the id is taken."""
        data = encode_record(record)
        await self._bucket.link.room()
        written: Written = await self._bucket.send_put(record.id, data, revision=0)
        if isinstance(written, WriteRefused) and written.is_conflict:
            written = await self._over_marker(record.id, data, written)
        return await self._settled(record, 0, data, written)

    async def create_many(self, records: Iterable[Record]) -> list[int | Refusal | None]:
        """As `create`, all at once; each has its own fate."""
        return await asyncio.gather(*(self._create_one(record) for record in records))

    async def change(
        self, job_id: str, decide: Decide, *, staged_too: bool = False
    ) -> Found | Refusal:
        """Apply ``decide`` to the job and write what it gives, once; `Refusal` if it refuses.

        When ``decide`` gives the record it got, nothing is written.
        """
        found = self._known(job_id)
        certain = False
        for _ in range(_TRIES):
            if found is None:
                found, certain = await self.read(job_id), True
            if found is None or not (staged_too or await self.is_visible(found.record)):
                if certain:
                    return not_found("job", job_id)
                found = None
                continue
            wanted = decide(found.record)
            if isinstance(wanted, Refusal):
                if certain:
                    return wanted
                found = None  # what we knew may be old: only the bucket may refuse
                continue
            if wanted is found.record:
                return found
            revision = await self._replace(wanted, found.revision)
            if revision is not None:
                return Found(wanted, revision)
            found = None
        return Refusal(
            "conflict",
            f"Job {job_id} changed {_TRIES} times while this was tried",
            {"job_id": job_id},
        )

    async def purge(self, job_id: str, revision: int) -> bool:
        """Remove the record if it is still at ``revision``; the marker vanishes by itself."""
        written = await self._bucket.purge(job_id, revision, marker_ttl=MARKER_TTL)
        if isinstance(written, Stored):
            self._lost(job_id, written.seq)
            return True
        return False

    async def decide_txn(self, txn: str, *, committed: bool, at_ms: int) -> bool:
        """Write the verdict on a transaction, unless there is one: whether ours stands."""
        data = msgspec.json.encode(Verdict(committed, at_ms))
        key = TXN + txn
        written: Written = await self._bucket.send_put(key, data, revision=0)
        if isinstance(written, Unknown):
            written = await self._bucket.settle_unknown(key, data, revision=0)
        if isinstance(written, Stored):
            self.note_verdict(txn, committed)
            return True
        if isinstance(written, Unknown):
            raise timed_out(written)
        return (await self.verdict(txn)) is committed

    async def forget_txn(self, txn: str) -> None:
        await self._bucket.purge(TXN + txn, marker_ttl=MARKER_TTL)

    # Inside -----------------------------------------------------------------------------

    async def _create_one(self, record: Record) -> int | Refusal | None:
        try:
            return await self.create(record)
        except Refused as error:
            return error.refusal

    async def _over_marker(self, key: str, data: bytes, refused: Written) -> Written:
        """An id whose last job was deleted is free again."""
        try:
            current = await self._bucket.get(key, leader=True)
        except (LinkError, ApiError):
            return refused
        if current is not None and not current.deleted:
            return refused
        revision = current.revision if current is not None else 0
        return await self._bucket.update(key, data, revision)

    async def _replace(self, record: Record, revision: int) -> int | None:
        """Compare-and-set; the new revision, or ``None`` when somebody else was first."""
        data = encode_record(record)
        await self._bucket.link.room()
        written: Written = await self._bucket.send_put(record.id, data, revision=revision)
        return await self._settled(record, revision, data, written)

    async def _settled(
        self, record: Record, revision: int, data: bytes, written: Written
    ) -> int | None:
        if isinstance(written, Unknown):
            written = await self._look_for(record, revision, data)
        if isinstance(written, Stored):
            if points.armed:
                points.reach(f"ojs.wrote.{record.tail[-1].kind if record.tail else 'job'}")
            self._heard(record, written.seq)
            return written.seq
        if isinstance(written, Unknown):
            raise timed_out(written)
        if written.err_code == WRONG_REVISION or written.is_conflict:
            return None
        raise Refused(Refusal("backend_unavailable", written.description, retry_after_s=1))

    async def _look_for(self, record: Record, revision: int, data: bytes) -> Written:
        """Find out whether our write took effect, even if others have written since."""
        written = await self._bucket.settle_unknown(record.id, data, revision=revision)
        if not isinstance(written, WriteRefused):
            return written
        now = await self.read(record.id)
        if now is not None and took_effect(record, now.record):
            return Stored(now.revision)
        return written


def found_in(value: Value | None) -> Found | None:
    if value is None or value.deleted:
        return None
    try:
        return Found(decode_record(value.value), value.revision)
    except msgspec.DecodeError as error:
        _log.error("the record at %s cannot be read: %s", value.key, error)
        return None


def took_effect(ours: Record, now: Record) -> bool:
    """Whether the record that lies there now came out of ours. A claim is known by its fence:
    two workers may start in the same millisecond."""
    if now.write_id == ours.write_id:
        return True
    if ours.held is not None:
        return now.held is not None and now.held.fence == ours.held.fence
    return bool(ours.tail) and ours.tail[-1] in now.tail


def unavailable(error: Exception) -> Refused:
    text = getattr(error, "message", None) or str(error)
    return Refused(Refusal("backend_unavailable", f"NATS: {text}", retry_after_s=1))


def timed_out(unknown: Unknown) -> Refused:
    return Refused(Refusal("backend_timeout", f"NATS: {unknown.reason}", retry_after_s=1))


def verdict_of(value: bytes) -> Verdict:
    return _verdicts.decode(value)
