"""The OJS worker without HTTP: each queue of an application is a `Source` for the runtime.

A job's life between this process and the store, and what a crash leaves in each gap:

    claim [1] handler [2] ack or nack

[1] [2] the lease runs out and the job is available again, counted as an attempt that got no answer.
The runtime renews leases while handlers run, so the first term may be short; a job that was claimed
for a take that was broken off is given back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec
from msgspec import Raw

from penstock.core import points
from penstock.core.delivery import Facilities, Facility, SourceLost
from penstock.core.errors import PenstockError
from penstock.core.task import Task
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.job import Job
from penstock.protocols.ojs.names import DEFAULT_QUEUE
from penstock.protocols.ojs.requests import BeatRequest, FetchRequest

__all__ = ["FACILITIES", "Presence", "QueueSource", "queue_of", "sources_of"]

_log = logging.getLogger("penstock.ojs")

_LOOKED_AT: Final = 200  # of those that wait, when somebody asks whether any does

FACILITIES: Final = Facilities(
    checkpoint=Facility.NATIVE,
    progress=Facility.NATIVE,
    cancel=Facility.NATIVE,
)


class QueueSource:
    """Jobs of one queue, of the types that this application knows."""

    facilities = FACILITIES
    task = ""

    def __init__(self, engine: Engine, queue: str, tasks: Mapping[str, str], holder: str) -> None:
        """``tasks``: which task serves which job type."""
        self.queue = queue
        self._engine = engine
        self._tasks = tasks
        self._holder = holder
        self._stopped = False

    @property
    def name(self) -> str:
        return f"ojs:{self.queue}"

    async def take(self, most: int, wait: timedelta) -> Sequence[Job]:
        if self._stopped:
            return []
        asked = FetchRequest(
            queues=(self.queue,),
            count=most,
            worker=self._holder,
            wait_ms=round(wait / timedelta(milliseconds=1)),
            beats=True,
            types=tuple(self._tasks),
        )
        try:
            records = await self._engine.fetch(asked, until=lambda: self._stopped)
        except PenstockError as error:
            raise SourceLost(error.message) from error
        if points.armed and records:
            points.reach("ojs.claimed")
        return [Job(self._engine, r, self._tasks[r.job.type], self._holder) for r in records]

    async def waiting(self) -> int | None:
        """Jobs that this worker could have had, among the next few; ``None`` under a limit.

        A pause, a limit or types that others serve keep work waiting, and nobody is deaf.
        """
        shared = self._engine.shared
        own, config = shared.queues.of(self.queue), shared.queues.config(self.queue)
        if own is not None and own.paused:
            return 0
        limits = (config.rate_limit, config.concurrency, own.max_per_second if own else None)
        if limits != (None, None, None):
            return None
        index = shared.books.index
        ready = (index.get(job_id) for job_id in index.first_ready(self.queue, _LOOKED_AT))
        return sum(1 for e in ready if e is not None and e.type in self._tasks and not e.limit_key)

    async def stop(self) -> None:
        self._stopped = True
        self._engine.shared.bells.ring(self.queue)


class Presence:
    """Tells the store every few seconds that this worker lives, for those who look."""

    def __init__(self, engine: Engine, holder: str, queues: Iterable[str]) -> None:
        self._engine = engine
        self._holder = holder
        self._queues = tuple(queues)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._task is None:
            await self._beat("running")
            self._task = asyncio.get_running_loop().create_task(self._run(), name="ojs:presence")

    async def stop(self) -> None:
        """Say good-bye: a worker that left is not one that died."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with contextlib.suppress(PenstockError):
            await self._engine.workers.remove(self._holder)

    async def _run(self) -> None:
        every_s = self._engine.options.heartbeat_interval.total_seconds()
        while True:
            await asyncio.sleep(every_s)
            try:
                await self._beat("running")
            except PenstockError as error:
                _log.debug("a heartbeat was not stored: %s", error.message)

    async def _beat(self, state: str) -> None:
        held = self._engine.shared.books.index.held_by(self._holder)
        about = {"kind": Raw(msgspec.json.encode("penstock"))}
        beat = BeatRequest(
            worker=self._holder,
            state=state,
            queues=self._queues,
            active_count=len(held),
            about=about,
        )
        await self._engine.heartbeat(beat)


def queue_of(task: Task) -> str:
    """The queue of a task: its ``queue=``, or the default one."""
    return task.queue or DEFAULT_QUEUE


def sources_of(engine: Engine, tasks: Iterable[Task], holder: str) -> list[QueueSource]:
    """One source per queue. A task that replies is no stored work."""
    by_queue: dict[str, dict[str, str]] = {}
    for task in tasks:
        if not task.replies:
            by_queue.setdefault(queue_of(task), {})[task.name_on("ojs")] = task.name
    return [QueueSource(engine, queue, known, holder) for queue, known in by_queue.items()]
