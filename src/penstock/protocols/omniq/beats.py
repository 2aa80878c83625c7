"""Heartbeats: those that fall due together travel together, one call for all jobs of a queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.core import points
from penstock.core.errors import PenstockError
from penstock.protocols.omniq.errors import OmniqError
from penstock.protocols.omniq.wire import ReservedJob

if TYPE_CHECKING:
    from penstock.protocols.omniq.client import OmniqClient

__all__ = ["Beats"]

_MOST = 500


class Beats:
    """Of one queue. The runtime's one ticker says when; this says it once for all."""

    def __init__(self, client: OmniqClient, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._due: list[tuple[tuple[str, str], asyncio.Future[int | OmniqError]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def beat(self, job: ReservedJob) -> int | OmniqError:
        """The new end of the lease, or why it is lost. Raises what the connection raises."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int | OmniqError] = loop.create_future()
        self._due.append(((job.job_id, job.lease_token), answer))
        if self._sender is None:
            self._sender = loop.create_task(self._send(), name=f"beats:{self._queue}")
        return await answer

    async def _send(self) -> None:
        try:
            while self._due:
                now, self._due = self._due[:_MOST], self._due[_MOST:]
                await self._send_some(now)
        finally:
            self._sender = None

    async def _send_some(
        self, beats: list[tuple[tuple[str, str], asyncio.Future[int | OmniqError]]]
    ) -> None:
        answers: list[int | OmniqError | PenstockError]
        leases = [lease for lease, _ in beats]
        if points.armed:
            points.reach("omniq.beat")
        try:
            answers = [*await self._client.heartbeat_many(self._queue, leases)]
        except PenstockError as error:
            answers = [error] * len(beats)
        if points.armed:
            points.reach("omniq.beaten")
        for (_, waiting), answer in zip(beats, answers, strict=True):
            if waiting.done():
                continue
            if isinstance(answer, PenstockError) and not isinstance(answer, OmniqError):
                waiting.set_exception(type(answer)(answer.message))
            else:
                waiting.set_result(answer)
