"""The records of one task's runs: begun, taken back, finished, dropped, each by compare-and-set.

A write whose answer was lost is read back before anything else happens; a write that lost
its race changes nothing and says so. Outages are waited out for a while, because a result
that cannot be written is work done for nobody.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Final

from penstock.broker.bucket import WRONG_REVISION, Bucket, Entry
from penstock.broker.bucket import Outcome as Written
from penstock.broker.errors import LinkError
from penstock.broker.publisher import Refused, Stored, Unknown
from penstock.broker.streams import ApiError
from penstock.core.codec import JsonError
from penstock.protocols.natq.wire import Output, decode_output, processing_record, result_key

__all__ = ["Records", "lost_race"]

_log = logging.getLogger("penstock.natq")
_PATIENCE: Final = (0.05, 0.25, 1.0, 2.0)  # seconds between tries to write a final record
_MARKER_KEPT: Final = timedelta(minutes=5)


def lost_race(written: Written) -> bool:
    """Did somebody else write since the revision that was expected?"""
    return isinstance(written, Refused) and written.err_code == WRONG_REVISION


class Records:
    """What the results bucket says of ``task_id``."""

    def __init__(self, bucket: Bucket, task_id: str, *, ttl: timedelta | None = None) -> None:
        self.bucket = bucket
        self.task_id = task_id
        self._ttl = ttl if ttl is not None and bucket.allows_ttl else None
        if ttl is not None and self._ttl is None:
            _log.warning(
                "bucket %s was made without times to live, so results of %s are kept",
                bucket.name,
                task_id,
            )

    def begin(
        self, run_id: str, seq: int, *, attempt: int | None = None, revision: int | None = 0
    ) -> asyncio.Future[Written]:
        """Send the processing record without waiting; the first one expects to be the first."""
        record = processing_record(self.task_id, run_id, attempt=attempt, seq=seq)
        return self.bucket.send_put(result_key(self.task_id, run_id), record, revision=revision)

    async def begun(
        self, run_id: str, seq: int, *, attempt: int | None = None, revision: int | None
    ) -> Written:
        """As `begin`, waiting, with a lost answer read back."""
        written = await self.begin(run_id, seq, attempt=attempt, revision=revision)
        if isinstance(written, Unknown) and revision is not None:
            record = processing_record(self.task_id, run_id, attempt=attempt, seq=seq)
            key = result_key(self.task_id, run_id)
            return await self.bucket.settle_unknown(key, record, revision=revision, tries=2)
        return written

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

    async def finish(self, run_id: str, record: bytes, *, revision: int | None) -> Written:
        """Write the final record over ``revision``, waiting out an outage for a few seconds."""
        written = await self._write_final(run_id, record, revision)
        for pause in _PATIENCE:
            if isinstance(written, Stored) or lost_race(written):
                return written
            await asyncio.sleep(pause)
            written = await self._write_final(run_id, record, revision)
        return written

    async def drop(self, run_id: str) -> None:
        """Delete a result nobody wants. The marker goes too, where the bucket lets it."""
        key = result_key(self.task_id, run_id)
        if self.bucket.allows_ttl:
            dropped = await self.bucket.purge(key, marker_ttl=_MARKER_KEPT)
        else:
            dropped = await self.bucket.delete(key)
        if not isinstance(dropped, Stored):
            _log.warning("the result of %s %s was not dropped: %s", self.task_id, run_id, dropped)

    async def _write_final(self, run_id: str, record: bytes, revision: int | None) -> Written:
        key = result_key(self.task_id, run_id)
        try:
            at = await self._revision_of(run_id) if revision is None else revision
            if at is None:
                return Refused(400, WRONG_REVISION, "a final record stands already")
            written = await self.bucket.send_put(key, record, revision=at, ttl=self._ttl)
            if isinstance(written, Unknown):
                return await self.bucket.settle_unknown(
                    key, record, revision=at, ttl=self._ttl, tries=2
                )
        except (LinkError, ApiError) as error:
            return Unknown(error.message)
        return written

    async def _revision_of(self, run_id: str) -> int | None:
        """Where to write when the processing record was never confirmed; ``None``: too late."""
        record, entry = await self.read(run_id)
        if record is not None and record.is_final:
            return None
        return 0 if entry is None else entry.revision
