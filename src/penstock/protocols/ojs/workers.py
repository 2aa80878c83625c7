"""Workers: who beats, what they hold, what they were told, and who has fallen silent.

A worker exists from its first heartbeat. What the server wishes of it (`quiet`, `terminate`)
lies under a key of its own, so that a beat and an order never overwrite each other.
"""

from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from penstock.protocols.ojs import rules
from penstock.protocols.ojs.instants import instant_text, of_ms
from penstock.protocols.ojs.names import JOB_ID
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal, not_found
from penstock.protocols.ojs.requests import BeatRequest, Holding
from penstock.protocols.ojs.shared import Shared
from penstock.protocols.ojs.store import Found
from penstock.protocols.ojs.table import Table
from penstock.protocols.ojs.timing import worker_died

__all__ = ["Beat", "WorkerRow", "Workers"]

DRAINING = frozenset({"drain", "quiet", "terminate"})


class WorkerRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last beat of a worker. ``about``: what else it said of itself."""

    id: str
    state: str
    first_ms: int
    last_ms: int
    beats: int = 1
    queues: tuple[str, ...] = ()
    active: int = 0
    job_ids: tuple[str, ...] = ()
    about: dict[str, Raw] = {}


class Wish(Struct, frozen=True):
    worker: str
    state: str
    at_ms: int


class Beat(Struct, frozen=True):
    """The answer to a heartbeat: ``state`` is what the server wishes of the worker."""

    state: str
    extended: tuple[str, ...]
    cancelled: tuple[str, ...]
    server_time: str
    first: bool = False


class Workers:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.table: Table[WorkerRow] = Table(shared.room.workers, "worker", WorkerRow)
        self._wishes: Table[Wish] = Table(shared.room.workers, "wish", Wish)

    async def start(self) -> None:
        await asyncio.gather(self.table.start(), self._wishes.start())

    async def stop(self) -> None:
        await self.table.stop()
        await self._wishes.stop()

    def all(self) -> list[WorkerRow]:
        return [row for _, row in self.table.rows()]

    async def listed(self) -> list[WorkerRow]:
        """All, those included that others have heard of before this call."""
        await self.table.barrier()
        return self.all()

    def get(self, worker: str) -> WorkerRow | Refusal:
        row = self.table.get(_key(worker))
        return not_found("worker", worker) if row is None else row

    def state_of(self, row: WorkerRow) -> str:
        """What it says, or was told, or ``stale`` when it has been silent for too long."""
        silent_ms = self._shared.now_ms - row.last_ms
        if silent_ms > self._shared.options.heartbeat_timeout.total_seconds() * 1000:
            return "stale"
        wish = self._wishes.get(_key(row.id))
        return wish.state if wish is not None and row.state == "running" else row.state

    def takes_nothing(self, worker: str) -> bool:
        """Whether a worker is leaving, by its own words or ours: it gets no more jobs."""
        key = _key(worker)
        row, wish = self.table.get(key), self._wishes.get(key)
        return (row is not None and row.state in DRAINING) or (
            wish is not None and wish.state in DRAINING
        )

    async def wish(self, worker: str, state: str) -> WorkerRow | Refusal:
        """Tell a worker to be ``quiet``, to ``terminate``, or that it may go on (``running``)."""
        await self.table.barrier()
        row = self.get(worker)
        if isinstance(row, Refusal):
            return row
        if state == "running":
            await self._wishes.remove(_key(worker))
        else:
            await self._wishes.put(_key(worker), Wish(worker, state, self._shared.now_ms))
        return row

    async def remove(self, worker: str) -> bool:
        """Forget a worker that is gone."""
        await self._wishes.remove(_key(worker))
        return await self.table.remove(_key(worker))

    async def beat(self, asked: BeatRequest) -> Beat:
        now_ms, key = self._shared.now_ms, _key(asked.worker)
        before = self.table.get(key)
        row = WorkerRow(
            id=asked.worker,
            state=asked.state,
            first_ms=before.first_ms if before is not None else now_ms,
            last_ms=now_ms,
            beats=before.beats + 1 if before is not None else 1,
            queues=asked.queues,
            active=asked.active_count,
            job_ids=asked.job_ids,
            about=asked.about,
        )
        await self.table.put(key, row)
        results = await asyncio.gather(*(self._extend(i, asked) for i in asked.job_ids))
        held = [r for r in results if isinstance(r, Record)]
        return Beat(
            state=self._wanted(key, held),
            extended=tuple(record.id for record in held),
            cancelled=tuple(r for r in results if isinstance(r, str) and r),
            server_time=instant_text(of_ms(now_ms)),
            first=before is None,
        )

    def silent(self) -> list[WorkerRow]:
        """Workers that have been beating and stopped, with jobs in hand."""
        return [r for r in self.all() if r.job_ids and self.state_of(r) == "stale"]

    def next_silence_ms(self) -> int | None:
        """When the next worker would be called silent."""
        limit = round(self._shared.options.heartbeat_timeout.total_seconds() * 1000)
        return min((row.last_ms + limit + 1 for row in self.all() if row.job_ids), default=None)

    async def take_back(self, row: WorkerRow) -> None:
        """Return the jobs of a worker that fell silent."""
        shared = self._shared
        await asyncio.gather(
            *(
                shared.books.store.change(
                    job_id,
                    lambda r: worker_died(
                        r, row.id, shared.clock(), shared.dice, shared.keeping(r)
                    ),
                )
                for job_id in row.job_ids
            )
        )

        def forgotten(now: WorkerRow | None) -> WorkerRow | None:
            return None if now is None or now.last_ms != row.last_ms else replace(now, job_ids=())

        await self.table.change(_key(row.id), forgotten)

    # Inside -----------------------------------------------------------------------------

    async def _extend(self, job_id: str, asked: BeatRequest) -> Record | str:
        """The record if it was extended, the id if it was cancelled under the worker's hands."""
        if not JOB_ID.fullmatch(job_id):
            return ""
        shared, holding = self._shared, Holding(worker=asked.worker)
        term = timedelta(milliseconds=asked.visibility_ms) if asked.visibility_ms else None
        done = await shared.books.store.change(
            job_id,
            lambda r: rules.heartbeat(r, holding, shared.clock(), shared.dice, term=term),
        )
        if isinstance(done, Found):
            return done.record
        return job_id if done.details.get("current_state") == "cancelled" else ""

    def _wanted(self, key: str, held: list[Record]) -> str:
        wish = self._wishes.get(key)
        if wish is not None:
            return wish.state
        if self._shared.options.conformance:
            for record in held:
                told: Any = msgspec.json.decode(record.job.meta).get("test_directive")
                if told in ("quiet", "terminate"):
                    return str(told)
        return "running"


def _key(worker: str) -> str:
    """Worker ids are free text: a digest is always a key."""
    return hashlib.sha256(worker.encode()).hexdigest()[:32]
