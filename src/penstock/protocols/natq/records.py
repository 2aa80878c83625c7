"""The records of one task's runs: begun, taken back, finished, dropped, each by compare-and-set.

A write whose answer was lost is read back before anything else happens; a write that lost
its race changes nothing and says so. Outages are waited out for a while, because a result
that cannot be written is work done for nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from msgspec import UNSET

from penstock.broker.bucket import WRONG_REVISION, Bucket, Entry
from penstock.broker.bucket import Outcome as Written
from penstock.broker.errors import LinkError
from penstock.broker.message import Message
from penstock.broker.publisher import Refused, Stored, Unknown
from penstock.broker.streams import ApiError
from penstock.core import points
from penstock.core.codec import JsonError
from penstock.protocols.natq.wire import Output, decode_output, processing_record, result_key

__all__ = ["Records", "ack_and_drop", "lost_race", "too_large"]

_log = logging.getLogger("penstock.natq")
_MESSAGE_TOO_LARGE: Final = 10054
_PATIENCE: Final = (0.05, 0.25, 1.0, 2.0, 0.0)  # seconds after each try of a final record
_UNTRIED: Final = Refused(0, 0, "not tried yet")
_MARKER_KEPT: Final = timedelta(minutes=5)
_UNDROPPED_KEPT: Final = timedelta(days=1)  # a result whose worker died before it dropped it


def lost_race(written: Written) -> bool:
    """Did somebody else write since the revision that was expected?"""
    return isinstance(written, Refused) and written.err_code == WRONG_REVISION


def too_large(written: Written) -> bool:
    """Is the record more than the bucket takes in one value, however often it is tried?"""
    return isinstance(written, Refused) and written.err_code == _MESSAGE_TOO_LARGE


async def ack_and_drop(message: Message, records: Records, run_id: str) -> None:
    """Settle a job whose result nobody wants. The result goes only once the ack has arrived:

    without record *and* with its message, the job would run again. When no answer comes both
    stay, and the message brings us back here.
    """
    if await message.ack_confirmed():
        if points.armed:
            points.reach("natq.acked")
        await records.drop(run_id)
        if points.armed:
            points.reach("natq.dropped")


class Records:
    """What the results bucket says of ``task_id``; written in the name of one worker."""

    def __init__(
        self,
        bucket: Bucket,
        task_id: str,
        *,
        ttl: timedelta | None = None,
        worker_id: str = "",
        remake: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._remake = remake
        self.bucket = bucket
        self.task_id = task_id
        self.worker_id = worker_id
        self._ttl = ttl if ttl is not None and bucket.allows_ttl else None
        if ttl is not None and self._ttl is None:
            _log.warning(
                "bucket %s was made without times to live, so results of %s are kept",
                bucket.name,
                task_id,
            )

    def begin(
        self, run_id: str, seq: int, *, attempt: int | None = None, revision: int = 0
    ) -> asyncio.Future[Written]:
        """Send the processing record without waiting; the first one expects to be the first."""
        record = self._processing(run_id, seq, attempt)
        return self.bucket.send_put(result_key(self.task_id, run_id), record, revision=revision)

    async def begun(
        self, run_id: str, seq: int, *, attempt: int | None = None, revision: int = 0
    ) -> Written:
        """As `begin`, waiting, with a lost answer read back."""
        await self.bucket.link.room()
        written = await self.begin(run_id, seq, attempt=attempt, revision=revision)
        if isinstance(written, Unknown):
            return await self.confirmed(run_id, seq, attempt=attempt, revision=revision)
        return written

    async def confirmed(
        self, run_id: str, seq: int, *, attempt: int | None = None, revision: int = 0
    ) -> Written:
        """What became of a processing record whose answer was lost: read back, then finished."""
        record = self._processing(run_id, seq, attempt)
        key = result_key(self.task_id, run_id)
        return await self.bucket.settle_unknown(key, record, revision=revision, tries=2)

    async def read(self, run_id: str) -> tuple[Output | None, Entry | None]:
        """The record as the stream's leader has it, and its entry (a marker has no record)."""
        entry = await self.bucket.get(result_key(self.task_id, run_id), leader=True)
        if entry is None or entry.deleted:
            return None, entry
        try:
            return decode_output(entry.value), entry
        except JsonError:
            _log.warning("the record of %s %s is not readable", self.task_id, run_id)
            return None, entry

    async def finish(
        self,
        run_id: str,
        record: bytes,
        *,
        revision: int | None,
        seq: int,
        attempt: int,
        to_be_dropped: bool = False,
    ) -> Written:
        """Write the final record over ``revision``, waiting out an outage for a few seconds.

        Without a revision (the processing record was never confirmed) it is found by reading:
        a record that another worker wrote since for this or a newer attempt stands.
        """
        key = result_key(self.task_id, run_id)
        ttl = self._ttl
        if to_be_dropped and self.bucket.allows_ttl:  # goes by itself if its worker dies first
            ttl = _UNDROPPED_KEPT if ttl is None else min(ttl, _UNDROPPED_KEPT)
        written: Written = _UNTRIED
        for pause in _PATIENCE:
            try:
                at: int | Written | None = revision
                if at is None:
                    at = await self._revision_for(run_id, record, seq, attempt)
                if isinstance(at, int):
                    written = await self._put(key, record, at, ttl, before=written)
                else:
                    written = at
                if isinstance(written, Stored):
                    break
                if revision is not None and await self._ground_is_gone(written, run_id):
                    revision, written = None, _UNTRIED
                    continue
            except (LinkError, ApiError) as error:
                written = Unknown(error.message)
            if lost_race(written) or too_large(written):
                break
            await asyncio.sleep(pause)
        return written

    async def restore(self) -> None:
        """The bucket was deleted under us: make it again."""
        _log.warning("bucket %s is not there, and made again", self.bucket.name)
        if self._remake is not None:
            await self._remake()

    async def drop(self, run_id: str) -> None:
        """Delete a result nobody wants. The marker goes too, where the bucket lets it.

        It is a delete and never a purge: that one says that somebody withdrew the record.
        """
        key = result_key(self.task_id, run_id)
        kept = _MARKER_KEPT if self.bucket.allows_ttl else None
        dropped = await self.bucket.delete(key, marker_ttl=kept)
        if not isinstance(dropped, Stored):
            _log.warning("the result of %s %s was not dropped: %s", self.task_id, run_id, dropped)

    async def _ground_is_gone(self, written: Written, run_id: str) -> bool:
        """Was the bucket deleted under us? Now it is there, and holds nothing of this run.

        A race that was lost to nobody, not even to a marker, is told by that.
        """
        if isinstance(written, Refused) and written.is_unheard:
            await self.restore()
            return True
        return lost_race(written) and (await self.read(run_id))[1] is None

    def _processing(self, run_id: str, seq: int, attempt: int | None) -> bytes:
        return processing_record(
            self.task_id, run_id, attempt=attempt, seq=seq, worker=self.worker_id
        )

    async def _put(
        self, key: str, record: bytes, at: int, ttl: timedelta | None, *, before: Written
    ) -> Written:
        """Write over revision ``at``; if the write ``before`` may have arrived, look first."""
        written = before
        if not isinstance(before, Unknown):
            if not self.bucket.link.has_room:
                await self.bucket.link.room()
            written = await self.bucket.send_put(key, record, revision=at, ttl=ttl)
        if isinstance(written, Unknown):
            return await self.bucket.settle_unknown(key, record, revision=at, ttl=ttl, tries=2)
        return written

    async def _revision_for(
        self, run_id: str, final: bytes, seq: int, attempt: int
    ) -> int | Stored | Refused:
        """Where to write when the processing record was never confirmed, or what it came to."""
        record, entry = await self.read(run_id)
        if entry is None:
            return 0
        if record is not None and self._is_anothers(record, seq, attempt):
            if entry.value == final:  # our own, its answer was lost
                return Stored(entry.revision)
            return Refused(400, WRONG_REVISION, "another record stands already")
        return entry.revision

    def _is_anothers(self, record: Output, seq: int, attempt: int) -> bool:
        """Did somebody else finish this run, or begin it for an attempt that is not before ours?"""
        if record.is_final:
            return True
        if record.seq is UNSET or record.worker == self.worker_id:
            return False
        counted = 1 if record.attempt is UNSET else record.attempt
        return record.seq != seq or counted >= attempt
