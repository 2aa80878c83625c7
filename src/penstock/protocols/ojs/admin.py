"""OJS for operators: queues, jobs, dead letters, through the port that all protocols share.

``state`` takes the eight states of a job, and ``dead`` for the dead letters.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from penstock.core.admin import Done, Page, QueueView, WorkView
from penstock.core.errors import UnknownName
from penstock.core.invocation import ProtocolName
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.instants import of_ms
from penstock.protocols.ojs.names import JOB_ID, STATES
from penstock.protocols.ojs.record import Record, decode_record
from penstock.protocols.ojs.refusal import Refusal
from penstock.protocols.ojs.views import JobQuery

__all__ = ["OjsAdmin"]

_DEAD = "dead"


class OjsAdmin:
    """Answers for one OJS on one server, from an engine that follows its records."""

    protocol: ProtocolName = "ojs"
    actions: Sequence[str] = ("cancel", "retry", "replay", "rm", "drop", "pause", "resume")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def queues(self) -> Sequence[QueueView]:
        return [
            QueueView(
                protocol="ojs",
                name=view.name,
                waiting=view.counts["available"],
                running=view.counts["active"],
                delayed=view.counts["scheduled"] + view.counts["retryable"],
                failed=view.counts["discarded"],
                paused=view.paused,
                detail=dict(view.counts),
            )
            for view in await self._engine.queues()
        ]

    async def find(
        self, *, name: str = "", state: str = "", limit: int = 100, cursor: str = ""
    ) -> Page:
        """Jobs of a type or all, newest in their state first."""
        if state and state not in (*STATES, _DEAD):
            raise UnknownName("state", state, [*STATES, _DEAD])
        query = JobQuery(job_type=name, limit=limit, cursor=cursor)
        if state == _DEAD:
            page = await self._engine.dead_letters.page(query)
        else:
            states = (state,) if state else ()
            page = await self._engine.jobs(msgspec.structs.replace(query, states=states))
        return Page(tuple(_view(record) for record in page.jobs), page.cursor)

    async def show(self, name: str, work_id: str) -> WorkView | None:  # noqa: ARG002 - ids are unique
        if not JOB_ID.fullmatch(work_id):
            return None
        found = await self._engine.info(work_id)
        return None if isinstance(found, Refusal) else _view(found)

    async def act(self, action: str, name: str, work_ids: Sequence[str]) -> Done:
        """``cancel``, ``retry`` (of what ended without success), ``rm`` jobs; ``replay`` and
        ``drop`` dead letters (all of a type when no ids are given); ``pause`` and ``resume``
        take the queue as ``name``."""
        engine = self._engine
        if action in ("pause", "resume"):
            await engine.pause(name, paused=action == "pause")
            return Done(1)
        deeds: dict[str, Callable[[str], Awaitable[Record | Refusal]]] = {
            "cancel": engine.cancel,
            "retry": engine.redrive,
            "rm": engine.delete,
            "replay": engine.dead_letters.retry,
            "drop": engine.dead_letters.delete,
        }
        deed = deeds.get(action)
        if deed is None:
            raise UnknownName("action", action, self.actions)
        ids = list(work_ids)
        if not ids and action in ("replay", "drop"):
            page = await engine.dead_letters.page(JobQuery(job_type=name, limit=10**9))
            ids = [record.id for record in page.jobs]
        done = await engine.dead_letters.for_each(ids, deed)
        return Done(len(done.done), tuple(done.refused))

    async def watch(self, *, name: str = "") -> AsyncIterator[WorkView]:
        """Every change of a job from now on."""
        watch = await self._engine.shared.room.jobs.watch("*", updates_only=True)
        async with watch:
            async for entry in watch:
                if entry.deleted or not JOB_ID.fullmatch(entry.key):
                    continue
                record = decode_record(entry.value)
                if not record.staged and (not name or record.job.type == name):
                    yield _view(record)


def _view(record: Record) -> WorkView:
    job = record.job
    error: Any = msgspec.json.decode(job.error) if isinstance(job.error, Raw) else {}
    return WorkView(
        protocol="ojs",
        name=job.type,
        work_id=job.id,
        state=job.state,
        queue=job.queue,
        attempt=record.counted,
        at=of_ms(record.tail[-1].at_ms if record.tail else record.created_ms),
        result=msgspec.json.decode(job.result) if isinstance(job.result, Raw) else None,
        error=str(error.get("message") or error.get("code") or ""),
        detail={
            "priority": job.priority,
            "max_attempts": job.max_attempts,
            "dead_letter": record.dead_letter,
            "created_at": job.created_at,
        },
    )
