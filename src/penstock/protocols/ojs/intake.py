"""Taking jobs in: one, or many that count all together or not at all.

One job is one create-only write, and its answer follows that write. A unique job is written
staged, locked, and made visible. The jobs of an atomic batch are written staged in one
burst and become visible by a single record, the verdict on their transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Raw, Struct
from msgspec.structs import replace

from penstock.core import points
from penstock.core.ids import short_token, uuid7
from penstock.protocols.ojs import rules
from penstock.protocols.ojs.arrival import enqueue
from penstock.protocols.ojs.envelope import Submission, too_large
from penstock.protocols.ojs.instants import in_ms, instant
from penstock.protocols.ojs.locks import Taken, holder_of
from penstock.protocols.ojs.queues import type_allowed
from penstock.protocols.ojs.record import Membership, Record, encode_record
from penstock.protocols.ojs.refusal import Refusal, Refused
from penstock.protocols.ojs.room_left import Pressure, RoomLeft
from penstock.protocols.ojs.shared import Shared
from penstock.protocols.ojs.steps import published
from penstock.protocols.ojs.store import Found
from penstock.protocols.ojs.unique import (
    Holder,
    Ignore,
    Reject,
    Replace,
    UniquePolicy,
    duplicate,
    unique_key,
)

__all__ = ["Intake", "Place", "Pushed"]

_log = logging.getLogger("penstock.ojs")
_REPLACED: Final = "replaced by a newer job with the same unique key"


class Pushed(Struct, frozen=True):
    """``deduplicated``: it is the existing job. ``pressure``: the queue is getting full."""

    record: Record
    deduplicated: bool = False
    pressure: Pressure | None = None


class Place(Struct, frozen=True, kw_only=True):
    """Where a job belongs: the id it must have and the workflow or cron it comes from.
    ``order``: microseconds to add to its place among equals, counted from ``at``."""

    job_id: str = ""
    at: datetime | None = None
    member: Membership | None = None
    parent_results: Raw | None = None
    order: int = 0


NOWHERE: Final = Place()


class _Draft(Struct):
    """A member of a batch on its way."""

    record: Record
    policy: UniquePolicy | None
    taken: Taken | None = None
    replaces: str = ""
    existing: Record | None = None


class Intake:
    def __init__(self, shared: Shared, room_left: RoomLeft) -> None:
        self._shared = shared
        self._books = shared.books
        self._store = shared.books.store
        self._queues = shared.queues
        self._slots = shared.slots
        self._locks = shared.locks
        self._room_left = room_left
        self._options = shared.options
        self._clock = shared.clock
        self._dice = shared.dice

    async def push(
        self, asked: Submission, place: Place = NOWHERE, *, block_s: float = 0.0
    ) -> Pushed | Refusal:
        """Take in one job; it is stored when this returns."""
        refusal = type_allowed(self._queues.config(asked.queue), asked.queue, asked.type)
        if refusal is not None:
            return refusal
        pressure = await self._room_left.for_more(asked.queue, 1, block_s)
        if isinstance(pressure, Refusal):
            return pressure
        await self._declare_limits(asked)
        if asked.unique is not None:
            found = await self._push_unique(asked, asked.unique, place)
        else:
            found = await self._push_plain(asked, place)
        if isinstance(found, Refusal) or pressure is None:
            return found
        return replace(found, pressure=pressure)

    async def push_many(
        self, asked: Sequence[Submission], *, atomic: bool = True
    ) -> list[Pushed | Refusal] | Refusal:
        """Take in many. ``atomic``: all or none, and a `Refusal` with ``details.index`` for none;
        otherwise each has its own answer."""
        if not atomic:
            return await asyncio.gather(*(self._push_safely(one) for one in asked))
        refusal = await self._check_all(asked)
        if refusal is not None:
            return refusal
        if len(asked) == 1:
            alone = await self.push(asked[0])
            return _at(alone, 0) if isinstance(alone, Refusal) else [alone]
        for one in {a.queue: a for a in asked if a.rate_limit is not None}.values():
            await self._declare_limits(one)
        return await self._commit(asked)

    # One --------------------------------------------------------------------------------

    def _draft(self, asked: Submission, place: Place, **more: Any) -> Record:
        job_id = place.job_id or asked.id or uuid7()
        now = place.at or self._clock()
        record = enqueue(
            asked,
            job_id,
            now,
            self._dice,
            member=place.member,
            parent_results=place.parent_results,
            **more,
        )
        return replace(record, order=record.order + place.order) if place.order else record

    async def _push_plain(self, asked: Submission, place: Place) -> Pushed | Refusal:
        record = self._draft(asked, place)
        if (refusal := self._too_large(record)) is not None:
            return refusal
        if await self._store.create(record) is None:
            return await self._taken_id(record.id)
        return Pushed(record)

    async def _push_unique(
        self, asked: Submission, policy: UniquePolicy, place: Place
    ) -> Pushed | Refusal:
        key = self._key_of(asked, policy)
        verdict = await self._locks.judge(key, policy, self._clock())
        if isinstance(verdict, Reject | Ignore):
            return await self._in_the_way(verdict, key)
        record = self._draft(asked, place, unique_key=key, staged=True)
        if (refusal := self._too_large(record)) is not None:
            return refusal
        revision = await self._store.create(record)
        if revision is None:
            return await self._taken_id(record.id)
        if points.armed:
            points.reach("ojs.unique_staged")
        verdict, taken = await self._locks.take(key, record.id, policy, self._clock)
        if taken is None:
            await self._store.purge(record.id, revision)
            assert isinstance(verdict, Reject | Ignore)  # else it would have been taken
            return await self._in_the_way(verdict, key)
        if points.armed:
            points.reach("ojs.unique_locked")
        shown = await self._show(record.id, verdict)
        if isinstance(shown, Refusal):
            return shown
        if isinstance(verdict, Replace):
            await self.retire(verdict.holder.job_id)
        return Pushed(shown.record)

    async def _show(self, job_id: str, verdict: object) -> Found | Refusal:
        """Make a staged job visible, with what it takes over from the one it replaces."""
        replaced = verdict.holder.job_id if isinstance(verdict, Replace) else ""
        schedule = verdict.scheduled_at if isinstance(verdict, Replace) else ""

        def decide(record: Record) -> Record | Refusal:
            at_ms = in_ms(instant(schedule)) if schedule else 0
            return published(
                record, self._dice, replaces=replaced, scheduled_at=schedule, run_ms=at_ms
            )

        return await self._store.change(job_id, decide, staged_too=True)

    async def retire(self, job_id: str) -> None:
        """Cancel the job that another one has replaced, unless it has ended by itself."""
        await self._store.change(
            job_id,
            lambda r: rules.cancel(
                r, self._clock(), self._dice, self._shared.keeping(r), reason=_REPLACED
            ),
        )

    async def _in_the_way(self, verdict: Reject | Ignore, key: str) -> Pushed | Refusal:
        if isinstance(verdict, Ignore):
            found = await self._store.read(verdict.holder.job_id)
            if found is not None:
                return Pushed(found.record, deduplicated=True)
        return duplicate(verdict.holder, key)

    async def _taken_id(self, job_id: str) -> Refusal:
        found = await self._store.read(job_id)
        if found is None:
            return duplicate(Holder(job_id, "unknown", self._clock()))
        return duplicate(holder_of(found))

    async def _push_safely(self, asked: Submission) -> Pushed | Refusal:
        try:
            return await self.push(asked)
        except Refused as error:
            return error.refusal

    def _key_of(self, asked: Submission, policy: UniquePolicy) -> str:
        return unique_key(
            policy,
            job_type=asked.type,
            queue=asked.queue,
            args=asked.args,
            meta=asked.meta,
            tenant=asked.tenant,
        )

    def _too_large(self, record: Record) -> Refusal | None:
        limit = self._options.limits.max_envelope_bytes
        size = len(bytes(record.job.args)) + len(bytes(record.job.meta))
        if size > limit or (record.extra and len(encode_record(record)) > limit):
            return too_large("job", size, limit)
        return None

    async def _declare_limits(self, asked: Submission) -> None:
        limit = asked.rate_limit
        if limit is None:
            return
        if limit.max_per_second is not None:
            own = self._queues.of(asked.queue)
            if own is None or own.max_per_second != limit.max_per_second:
                await self._queues.set_rate(asked.queue, limit.max_per_second, self._clock())
        if limit.key:
            await self._slots.declare(limit)

    # Many -------------------------------------------------------------------------------

    async def _check_all(self, asked: Sequence[Submission]) -> Refusal | None:
        seen: set[str] = set()
        wanted: dict[str, int] = {}
        for index, one in enumerate(asked):
            refusal = type_allowed(self._queues.config(one.queue), one.queue, one.type)
            if refusal is not None:
                return _at(refusal, index)
            if one.id and one.id in seen:
                return _at(duplicate(Holder(one.id, "available", self._clock())), index)
            seen.add(one.id)
            wanted[one.queue] = wanted.get(one.queue, 0) + 1
        for queue, count in wanted.items():
            found = await self._room_left.for_more(queue, count, 0.0)
            if isinstance(found, Refusal):
                return found
        return None

    async def _commit(self, asked: Sequence[Submission]) -> list[Pushed | Refusal] | Refusal:
        txn = short_token()
        at = self._clock()
        drafts = [self._batch_draft(one, index, txn, at) for index, one in enumerate(asked)]
        for index, draft in enumerate(drafts):
            if (large := self._too_large(draft.record)) is not None:
                return _at(large, index)
        refusal = await self._stage(drafts)
        if refusal is None:
            if points.armed:
                points.reach("ojs.batch_staged")
            refusal = await self._lock_all(drafts)
        if refusal is not None:
            await self._abort(drafts, txn)
            return refusal
        at_ms = in_ms(self._clock())
        if not await self._store.decide_txn(txn, committed=True, at_ms=at_ms):
            return Refusal("conflict", "The batch took too long and was given up; send it again")
        if points.armed:
            points.reach("ojs.batch_committed")
        self._books.committed(txn, at_ms)
        for draft in drafts:
            if draft.existing is None:
                self._books.wrote(replace(draft.record, txn=""))
            if draft.replaces:
                await self.retire(draft.replaces)
        return [
            Pushed(draft.record)
            if draft.existing is None
            else Pushed(draft.existing, deduplicated=True)
            for draft in drafts
        ]

    def _batch_draft(self, asked: Submission, index: int, txn: str, at: datetime) -> _Draft:
        key = "" if asked.unique is None else self._key_of(asked, asked.unique)
        place = Place(order=index, at=at)
        return _Draft(self._draft(asked, place, unique_key=key, txn=txn), asked.unique)

    async def _stage(self, drafts: list[_Draft]) -> Refusal | None:
        written = await self._store.create_many(draft.record for draft in drafts)
        for index, revision in enumerate(written):
            if revision is None:
                return _at(await self._taken_id(drafts[index].record.id), index)
            if isinstance(revision, Refusal):
                return _at(revision, index)
        return None

    async def _lock_all(self, drafts: list[_Draft]) -> Refusal | None:
        """Take the locks of unique members, in order; equal keys in one batch meet here too."""
        for index, draft in enumerate(drafts):
            if draft.policy is None:
                continue
            record = draft.record
            verdict, draft.taken = await self._locks.take(
                record.unique_key, record.id, draft.policy, self._clock
            )
            if isinstance(verdict, Reject):
                return _at(duplicate(verdict.holder, record.unique_key), index)
            if isinstance(verdict, Ignore):
                found = await self._store.read(verdict.holder.job_id)
                if found is None:
                    return _at(duplicate(verdict.holder, record.unique_key), index)
                draft.existing = found.record
                await self._withdraw(record.id)
            if isinstance(verdict, Replace):
                draft.replaces = verdict.holder.job_id
        return None

    async def _abort(self, drafts: list[_Draft], txn: str) -> None:
        """Nothing of it ever was: first the verdict, then the locks, then the staged jobs."""
        await self._store.decide_txn(txn, committed=False, at_ms=in_ms(self._clock()))
        for draft in reversed(drafts):
            if draft.taken is not None:
                await self._locks.release(draft.record.unique_key, draft.taken)
        await asyncio.gather(
            *(self._withdraw(draft.record.id, txn) for draft in drafts if draft.existing is None)
        )

    async def _withdraw(self, job_id: str, txn: str = "") -> None:
        """Remove a staged job of a batch, if it is ours."""
        found = await self._store.read(job_id)
        if found is not None and found.record.txn and (not txn or found.record.txn == txn):
            await self._store.purge(job_id, found.revision)


def _at(refusal: Refusal, index: int) -> Refusal:
    details = {**refusal.details, "index": index}
    return replace(refusal, message=f"jobs[{index}]: {refusal.message}", details=details)
