"""Looking at queues from asyncio: the monitor of the SDKs, 1.x and 4.0 names side by side."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from penstock.broker.redis_port import RedisPort
from penstock.protocols.omniq.calls import Call, Scripts
from penstock.protocols.omniq.views import (
    GROUPS_AT_ONCE,
    QUEUE_KEYS,
    Counts,
    GroupStatus,
    JobInfo,
    LanePage,
    Overview,
    QueueStats,
    State,
    Views,
    group_in,
    group_pattern,
    queue_of,
)

__all__ = ["Monitor"]

T = TypeVar("T")

_OVERVIEW_LANES: tuple[State, ...] = ("wait", "active", "delayed", "failed", "completed")


class _Run(Protocol):
    def __call__(self, call: Call[T], /) -> Awaitable[T]: ...


class Monitor:
    """Reads, never writes. Found at ``client.monitor``."""

    def __init__(
        self, scripts: Scripts, run: _Run, port: Callable[[], Awaitable[RedisPort]]
    ) -> None:
        self._views = Views(scripts)
        self._run = run
        self._port = port

    async def counts(self, queue: str) -> Counts:
        """True lengths of the lanes."""
        return await self._run(self._views.counts(queue))

    async def groups_ready(self, queue: str, *, offset: int = 0, limit: int = 200) -> list[str]:
        """The gids that may run a job now, next first; at most 2000."""
        pairs = await self._run(self._views.groups_ready(queue, offset, limit))
        return [gid for gid, _ in pairs]

    async def groups_ready_with_scores(
        self, queue: str, *, offset: int = 0, limit: int = 200
    ) -> list[tuple[str, int]]:
        """As `groups_ready`, with the instant each became ready."""
        return await self._run(self._views.groups_ready(queue, offset, limit))

    async def group_status(self, queue: str, gids: Sequence[str]) -> list[GroupStatus]:
        """How these groups stand."""
        return await self._run(self._views.group_status(queue, gids))

    async def sample_active(self, queue: str, *, limit: int = 50) -> list[JobInfo]:
        """Running jobs, the lease that ends first at the front; at most 500."""
        return await self._run(self._views.sample(queue, "active", limit))

    async def sample_delayed(self, queue: str, *, limit: int = 50) -> list[JobInfo]:
        """Jobs that wait for their time, next first; at most 500."""
        return await self._run(self._views.sample(queue, "delayed", limit))

    async def sample_failed(self, queue: str, *, limit: int = 50) -> list[JobInfo]:
        """Jobs that failed for good, newest first; at most 500."""
        return await self._run(self._views.sample(queue, "failed", limit))

    async def get_job(self, queue: str, job_id: str) -> JobInfo | None:
        """One job, whatever its state."""
        jobs = await self._run(self._views.find_jobs(queue, (job_id,)))
        return jobs[0] if jobs else None

    async def find_jobs(self, queue: str, job_ids: Sequence[str]) -> list[JobInfo]:
        """Those of up to 500 jobs that exist."""
        return await self._run(self._views.find_jobs(queue, job_ids))

    async def lane_page(
        self,
        queue: str,
        lane: State,
        *,
        offset: int = 0,
        limit: int = 25,
        reverse: bool = False,
        gid: str = "",
    ) -> list[JobInfo]:
        """Up to 25 jobs of a lane, or with ``gid`` of that group's line."""
        return await self._run(
            self._views.lane_page(queue, lane, offset=offset, limit=limit, reverse=reverse, gid=gid)
        )

    async def stats(self, queue: str) -> QueueStats:
        """The counters that SDK 4.x keeps."""
        return await self._run(self._views.stats(queue))

    async def stats_many(self, queues: Sequence[str]) -> list[QueueStats]:
        """As `stats` for several queues."""
        return [await self.stats(queue) for queue in queues]

    async def groups(self, queue: str) -> list[GroupStatus]:
        """How all groups stand that have keys. Walks all keys: for people, not for loops."""
        port = await self._port()
        found = [key async for key in port.scan(group_pattern(queue))]
        gids = sorted({group_in(queue, key) for key in found})
        return [
            status
            for at in range(0, len(gids), GROUPS_AT_ONCE)
            for status in await self.group_status(queue, gids[at : at + GROUPS_AT_ONCE])
        ]

    async def page(self, queue: str, lane: str, *, offset: int = 0, limit: int = 500) -> LanePage:
        """Up to 500 jobs of a lane as it really is, or of a group's line (``g:<gid>:wait``)."""
        return await self._run(self._views.page(queue, lane, offset, limit))

    async def scan_queues(self) -> list[str]:
        """The names of all queues on this Redis. Walks all keys: for people, not for loops."""
        port = await self._port()
        found: list[bytes] = [key async for key in port.scan(QUEUE_KEYS)]
        return sorted(queue_of(found))

    async def overview(self, queue: str) -> Overview:
        """Counters, lengths and the first ten jobs of each lane."""
        lanes: dict[str, Any] = {}
        for lane in _OVERVIEW_LANES:
            lanes[lane] = await self.lane_page(queue, lane, limit=10)
        return Overview(stats=await self.stats(queue), counts=await self.counts(queue), lanes=lanes)
