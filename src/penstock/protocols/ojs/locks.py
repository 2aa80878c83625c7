"""Unique locks: one row per unique key, naming the job that has it.

The order of writes closes every window: the job is written staged, then the lock names it, then
the job is made visible. Before the lock, a crash leaves a staged job that the reconciler removes;
after it, the reconciler rolls forward, so a refusal given meanwhile stays true. A lock is taken
over only by compare-and-set, when its job is missing or out of the way for the new request.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec import Struct

from penstock.broker.bucket import Bucket
from penstock.broker.errors import LinkError
from penstock.broker.publisher import Stored, Unknown, Written
from penstock.broker.streams import ApiError
from penstock.protocols.ojs.instants import of_ms
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.store import Found, Store, timed_out, unavailable
from penstock.protocols.ojs.unique import Conflict, Holder, Ignore, Reject, UniquePolicy, decide

__all__ = ["Lock", "Locks", "Taken"]

_TRIES: Final = 20
_MARKER_TTL: Final = timedelta(seconds=60)


class Lock(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``job_id`` has the key; ``before`` had it until then."""

    job_id: str
    at_ms: int
    before: str = ""


class Taken(Struct, frozen=True):
    """The lock names the new job now; ``before`` is what it said, to give it back."""

    revision: int
    before: Lock | None


class Locks:
    def __init__(self, bucket: Bucket, store: Store) -> None:
        self._bucket = bucket
        self._store = store

    async def read(self, key: str) -> tuple[Lock | None, int]:
        try:
            value = await self._bucket.get(key, leader=True)
        except (LinkError, ApiError) as error:
            raise unavailable(error) from error
        if value is None:
            return None, 0
        if value.deleted:
            return None, value.revision
        return msgspec.json.decode(value.value, type=Lock), value.revision

    async def judge(self, key: str, policy: UniquePolicy, now: datetime) -> Conflict:
        """What would happen to a new job under ``key``, without taking anything."""
        lock, _ = await self.read(key)
        holder = None if lock is None else await self._holder(lock)
        return decide(policy, holder, now)

    async def take(
        self,
        key: str,
        job_id: str,
        policy: UniquePolicy,
        clock: Callable[[], datetime],
    ) -> tuple[Conflict, Taken | None]:
        """Make ``key`` the job's unless somebody is in the way; the verdict, and what was taken."""
        for _ in range(_TRIES):
            lock, revision = await self.read(key)
            now = clock()
            holder = None if lock is None or lock.job_id == job_id else await self._holder(lock)
            verdict = decide(policy, holder, now)
            if isinstance(verdict, Reject | Ignore):
                return verdict, None
            at_ms = round(now.timestamp() * 1000)
            wanted = Lock(job_id=job_id, at_ms=at_ms, before=lock.job_id if lock else "")
            written = await self._write(key, wanted, revision)
            if written is not None:
                return verdict, Taken(written, lock)
        raise timed_out(Unknown(f"the unique key {key} was contended for too long"))

    async def release(self, key: str, taken: Taken) -> None:
        """Undo `take`, if nobody took it since."""
        if taken.before is None:
            await self._bucket.purge(key, taken.revision, marker_ttl=_MARKER_TTL)
        else:
            await self._bucket.update(key, msgspec.json.encode(taken.before), taken.revision)

    async def forget(self, key: str, job_id: str) -> None:
        """The job was purged: its lock goes too, if it is still its."""
        lock, revision = await self.read(key)
        if lock is not None and lock.job_id == job_id:
            await self._bucket.purge(key, revision, marker_ttl=_MARKER_TTL)

    async def names(self, key: str, job_id: str) -> bool:
        lock, _ = await self.read(key)
        return lock is not None and lock.job_id == job_id

    async def _holder(self, lock: Lock) -> Holder | None:
        found = await self._store.read(lock.job_id)
        if found is None or not await self._counts(found.record):
            return None
        return holder_of(found)

    async def _counts(self, record: Record) -> bool:
        """Whether a job stands in the way: also one that is about to be made visible."""
        if not record.txn:
            return True
        return (await self._store.verdict(record.txn)) is not False

    async def _write(self, key: str, lock: Lock, revision: int) -> int | None:
        data = msgspec.json.encode(lock)
        written: Written = await self._bucket.update(key, data, revision)
        if isinstance(written, Unknown):
            written = await self._bucket.settle_unknown(key, data, revision=revision)
        if isinstance(written, Unknown):
            raise timed_out(written)
        return written.seq if isinstance(written, Stored) else None


def holder_of(found: Found) -> Holder:
    job = found.record.job
    return Holder(job.id, job.state, of_ms(found.record.created_ms), job.scheduled_at)
