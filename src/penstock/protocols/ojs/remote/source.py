"""Work from a job server elsewhere: each queue is a `Source` for the runtime.

A server of ours is asked to hold a fetch until there is something (``wait_ms``). Others answer
at once, and are asked again after a pause that grows while nothing comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec
from msgspec import Raw, Struct

from penstock.core.delivery import Facilities, Facility, SourceLost
from penstock.core.task import Task
from penstock.protocols.ojs.names import DEFAULT_QUEUE
from penstock.protocols.ojs.remote.beats import Beats
from penstock.protocols.ojs.remote.errors import OjsError, ServerAway
from penstock.protocols.ojs.remote.job import HttpJob
from penstock.protocols.ojs.remote.transport import Transport
from penstock.protocols.ojs.remote.views import RemoteJob

__all__ = ["FACILITIES", "HttpSource", "sources_of"]

FACILITIES: Final = Facilities(
    checkpoint=Facility.NATIVE,
    progress=Facility.NATIVE,
    cancel=Facility.NATIVE,
)
_TERM: Final = timedelta(seconds=30)
_FIRST_PAUSE_S: Final = 0.02
_MAX_PAUSE_S: Final = 1.0
_LONGEST_WAIT_S: Final = 20.0


class _Fetched(Struct):
    jobs: list[Raw]


class HttpSource:
    """Jobs of one queue of a server. ``tasks``: which task serves which job type."""

    facilities = FACILITIES
    task = ""

    def __init__(
        self,
        transport: Transport,
        queue: str,
        tasks: Mapping[str, str],
        holder: str,
        *,
        term: timedelta = _TERM,
    ) -> None:
        self.queue = queue
        self._transport = transport
        self._tasks = tasks
        self._beats = Beats(transport, holder, term)
        self._stopped = asyncio.Event()

    @property
    def name(self) -> str:
        return f"ojs-http:{self.queue}"

    async def take(self, most: int, wait: timedelta) -> Sequence[HttpJob]:
        loop = asyncio.get_running_loop()
        end = loop.time() + min(wait.total_seconds(), _LONGEST_WAIT_S)
        pause = _FIRST_PAUSE_S
        while not self._stopped.is_set():
            left = max(end - loop.time(), 0.0)
            jobs = await self._fetch(most, left)
            left = end - loop.time()
            if jobs or left <= 0:
                return jobs
            try:
                async with asyncio.timeout(min(pause, left)):
                    await self._stopped.wait()
            except TimeoutError:
                pause = min(pause * 2, _MAX_PAUSE_S)
        return []

    async def waiting(self) -> int | None:
        """Not to be told: the queue may be paused, limited, or hold what others serve.

        Nothing is lost by it: a fetch that is answered has been heard, and one that is not raises.
        """
        return None

    async def stop(self) -> None:
        self._stopped.set()

    async def _fetch(self, most: int, wait_s: float) -> list[HttpJob]:
        asked = {
            "queues": [self.queue],
            "count": most,
            "worker_id": self._beats.holder,
            "visibility_timeout_ms": round(self._beats.term / timedelta(milliseconds=1)),
            "wait_ms": round(wait_s * 1000),
            "types": list(self._tasks),
        }
        try:
            answer = await self._transport.ask(
                "POST", "/ojs/v1/workers/fetch", asked, again=False, timeout=wait_s + 10
            )
        except (OjsError, ServerAway) as error:
            raise SourceLost(error.message) from error
        fetched = msgspec.json.decode(answer, type=_Fetched).jobs
        return [job for raw in fetched if (job := await self._job(raw)) is not None]

    async def _job(self, raw: Raw) -> HttpJob | None:
        """The job in hand; one that no task here serves goes back to the server."""
        job = msgspec.json.decode(raw, type=RemoteJob)
        task = self._tasks.get(job.type)
        if task is not None:
            return HttpJob(self._beats, job, raw, task)
        body = {"job_id": job.id, "worker_id": self._beats.holder, "requeue": True}
        await self._transport.ask("POST", "/ojs/v1/workers/nack", body)
        return None


def sources_of(transport: Transport, tasks: Iterable[Task], holder: str) -> list[HttpSource]:
    """One source per queue. A task that replies is no stored work."""
    by_queue: dict[str, dict[str, str]] = {}
    for task in tasks:
        if not task.replies:
            queue = task.queue or DEFAULT_QUEUE
            by_queue.setdefault(queue, {})[task.name_on("ojs")] = task.name
    return [HttpSource(transport, queue, known, holder) for queue, known in by_queue.items()]
