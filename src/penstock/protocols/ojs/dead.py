"""Dead letters and removal: what was given up, other lives for it, and forgetting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from penstock.protocols.ojs import rules
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal, not_found
from penstock.protocols.ojs.shared import Shared
from penstock.protocols.ojs.views import JobPage, JobQuery

__all__ = ["BulkDone", "DeadLetters", "DeadStats"]

_AT_ONCE: Final = 64


class DeadStats(Struct, frozen=True):
    total: int
    by_queue: dict[str, int]
    by_error_type: dict[str, int]
    oldest_ms: int
    newest_ms: int


class BulkDone(Struct, frozen=True):
    """What became of many at once; ``refused`` by job id."""

    matched: int
    done: tuple[str, ...]
    refused: dict[str, Refusal]


class DeadLetters:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._books = shared.books

    async def page(self, query: JobQuery, *, error_type: str = "") -> JobPage:
        """Dead letters, newest first. With ``error_type`` their records are looked at."""
        await self._books.barrier()
        if error_type:
            return await self._of_error(query, error_type)
        page, total = query.run_dead(self._books.index)
        found = await self._books.store.read_many(entry.id for entry in page.entries)
        jobs = [found[e.id].record for e in page.entries if e.id in found]
        return JobPage([job for job in jobs if job.dead_letter], page.cursor, total)

    async def get(self, job_id: str) -> Record | Refusal:
        found = await self._books.store.visible(job_id)
        if found is None or not found.record.dead_letter:
            return not_found("dead letter", job_id)
        return found.record

    async def retry(self, job_id: str, override: dict[str, Any] | None = None) -> Record | Refusal:
        """Another life: available, attempt 0, errors kept."""
        return await self._change(job_id, lambda r: self._redriven(r, override))

    async def delete(self, job_id: str, *, any_finished: bool = False) -> Record | Refusal:
        """Remove the job for good; what it was. ``any_finished``: it need not be a dead letter."""
        store = self._books.store
        for _ in range(8):
            found = await store.visible(job_id)
            if found is None or not (any_finished or found.record.dead_letter):
                return not_found("job" if any_finished else "dead letter", job_id)
            if (refusal := rules.removable(found.record)) is not None:
                return refusal
            if await store.purge(job_id, found.revision):
                await self.forget_lock(found.record)
                return found.record
        return Refusal("conflict", f"Job {job_id} keeps changing", {"job_id": job_id})

    async def forget_lock(self, record: Record) -> None:
        if record.unique_key:
            await self._shared.locks.forget(record.unique_key, record.id)

    async def stats(self) -> DeadStats:
        await self._books.barrier()
        entries = list(self._books.index.all_dead())
        by_queue: dict[str, int] = {}
        for entry in entries:
            by_queue[entry.queue] = by_queue.get(entry.queue, 0) + 1
        by_error: dict[str, int] = {}
        found = await self._books.store.read_many(entry.id for entry in entries[:1000])
        for one in found.values():
            kind = error_type_of(one.record)
            by_error[kind] = by_error.get(kind, 0) + 1
        stamps = [entry.stamp_ms for entry in entries]
        return DeadStats(
            len(entries), by_queue, by_error, min(stamps, default=0), max(stamps, default=0)
        )

    async def retry_all(self, query: JobQuery, *, error_type: str = "") -> BulkDone:
        """Another life for every dead letter that meets ``query``."""
        return await self._for_all(query, error_type, self.retry)

    async def delete_all(self, query: JobQuery, *, error_type: str = "") -> BulkDone:
        return await self._for_all(query, error_type, self.delete)

    async def for_each(
        self, job_ids: Sequence[str], deed: Callable[[str], Awaitable[Record | Refusal]]
    ) -> BulkDone:
        """Do ``deed`` to many jobs, some at a time."""
        done: list[str] = []
        refused: dict[str, Refusal] = {}
        for start in range(0, len(job_ids), _AT_ONCE):
            some = job_ids[start : start + _AT_ONCE]
            for job_id, result in zip(
                some, await asyncio.gather(*(deed(job_id) for job_id in some)), strict=True
            ):
                if isinstance(result, Refusal):
                    refused[job_id] = result
                else:
                    done.append(job_id)
        return BulkDone(len(job_ids), tuple(done), refused)

    async def purge_queue(self, queue: str, states: Sequence[str], older_than_ms: int) -> int:
        """Remove a queue's jobs in ``states``; those that wait are cancelled first."""
        await self._books.barrier()
        query = JobQuery(queue=queue, states=tuple(states), until_ms=older_than_ms, limit=10**9)
        page, _ = query.run(self._books.index)
        ids = [entry.id for entry in page.entries if entry.state != "active"]
        return len((await self.for_each(ids, self._cancel_and_delete)).done)

    # Inside -----------------------------------------------------------------------------

    async def _cancel_and_delete(self, job_id: str) -> Record | Refusal:
        shared = self._shared
        await self._change(
            job_id, lambda r: rules.cancel(r, shared.clock(), shared.dice, shared.options)
        )
        return await self.delete(job_id, any_finished=True)

    async def _of_error(self, query: JobQuery, error_type: str) -> JobPage:
        matching: list[Record] = []
        wanted = [e for e in self._books.index.all_dead() if query.meets(e)]
        for start in range(0, len(wanted), 500):
            some = wanted[start : start + 500]
            found = await self._books.store.read_many(entry.id for entry in some)
            matching += [
                found[e.id].record
                for e in some
                if e.id in found and error_type_of(found[e.id].record) == error_type
            ]
        return JobPage(matching[query.offset : query.offset + query.limit], "", len(matching))

    async def _for_all(
        self,
        query: JobQuery,
        error_type: str,
        deed: Callable[[str], Awaitable[Record | Refusal]],
    ) -> BulkDone:
        everything = msgspec.structs.replace(query, cursor="", offset=0, limit=10**9)
        page = await self.page(everything, error_type=error_type)
        return await self.for_each([record.id for record in page.jobs], deed)

    def _redriven(self, record: Record, override: dict[str, Any] | None) -> Record | Refusal:
        if not record.dead_letter:
            return not_found("dead letter", record.id)
        return rules.redrive(record, self._shared.clock(), self._shared.dice, override=override)

    async def _change(
        self, job_id: str, decide: Callable[[Record], Record | Refusal]
    ) -> Record | Refusal:
        done = await self._books.store.change(job_id, decide)
        return done if isinstance(done, Refusal) else done.record


def error_type_of(record: Record) -> str:
    error = record.job.error
    if not isinstance(error, Raw):
        return ""
    kind = msgspec.json.decode(error).get("type", "")
    return kind if isinstance(kind, str) else ""
