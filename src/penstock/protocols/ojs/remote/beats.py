"""Heartbeats: one request for all jobs that a worker holds, however many ask at the same moment."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from penstock.core.delivery import CancelAsked, Gone, Renewal, Renewed, Unknown
from penstock.protocols.ojs.remote.errors import OjsError, ServerAway
from penstock.protocols.ojs.remote.transport import Transport
from penstock.protocols.ojs.remote.views import BeatAnswer

__all__ = ["Beats"]

_GATHER_S: Final = 0.005


class Beats:
    """What one worker holds at one server. A job is held from its fetch to its settlement."""

    def __init__(self, transport: Transport, holder: str, term: timedelta) -> None:
        self.transport = transport
        self.holder = holder
        self.term = term
        self._held: dict[str, int] = {}
        self._under_way: asyncio.Task[dict[str, Renewal]] | None = None

    def hold(self, job_id: str) -> None:
        self._held[job_id] = self._held.get(job_id, 0) + 1

    def let_go(self, job_id: str) -> None:
        left = self._held.get(job_id, 0) - 1
        if left > 0:
            self._held[job_id] = left
        else:
            self._held.pop(job_id, None)

    async def renew(self, job_id: str) -> Renewal:
        """Keep the job for another term, together with all others."""
        if self._under_way is None:
            self._under_way = asyncio.create_task(self._beat(), name="ojs:beat")
        answers = await asyncio.shield(self._under_way)
        return answers.get(job_id) or Gone("the server no longer counts the job as ours")

    async def _beat(self) -> dict[str, Renewal]:
        await asyncio.sleep(_GATHER_S)  # others are about to ask the same
        self._under_way = None
        ids = list(self._held)
        asked = {
            "worker_id": self.holder,
            "active_job_ids": ids,
            "active_jobs": len(ids),
            "visibility_timeout_ms": round(self.term / timedelta(milliseconds=1)),
        }
        until = datetime.now(UTC) + self.term
        try:
            answer = await self.transport.ask("POST", "/ojs/v1/workers/heartbeat", asked)
        except (OjsError, ServerAway) as error:
            return dict.fromkeys(ids, Unknown(error.message))
        beat = msgspec.json.decode(answer, type=BeatAnswer)
        cancelled = dict.fromkeys(beat.cancelled_jobs, CancelAsked("the job was cancelled"))
        return {**dict.fromkeys(beat.jobs_extended, Renewed(until)), **cancelled}
