"""OmniQ for operators: its queues, its jobs, and what can be done about them.

A job is found by the lane it stands in: ``wait`` (its group's line too), ``active``,
``delayed``, ``failed``, ``completed``; ``dead`` is another word for ``failed``. Lanes move
while one looks, so a long listing may miss or repeat what moved meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from penstock.core import codec
from penstock.core.admin import Done, Page, QueueView, WorkView
from penstock.core.errors import UnknownName
from penstock.core.invocation import ProtocolName
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.upkeep import MAX_BATCH, BatchItem
from penstock.protocols.omniq.views import JobInfo
from penstock.protocols.omniq.wire import Lane

__all__ = ["OmniqAdmin"]

_STATES: Final = ("wait", "active", "delayed", "failed", "completed")
_PAGE: Final = 500
_LOOK_S: Final = 0.5
_Batch: TypeAlias = Callable[[Sequence[str]], Coroutine[Any, Any, list[BatchItem]]]


class OmniqAdmin:
    """Answers for all queues on one Redis."""

    protocol: ProtocolName = "omniq"
    actions: Sequence[str] = ("retry", "replay", "rm", "drop", "pause", "resume", "rebuild")

    def __init__(self, client: OmniqClient) -> None:
        self._client = client

    async def queues(self) -> Sequence[QueueView]:
        """Every queue that has keys. Walks all keys of the server: for people, not for loops."""
        return [await self._queue(name) for name in await self._client.monitor.scan_queues()]

    async def find(
        self, *, name: str = "", state: str = "", limit: int = 100, cursor: str = ""
    ) -> Page:
        """Jobs of one queue or all, lane after lane in the order they stand there."""
        lanes = [lane async for lane in self._lanes(name, _state(state))]
        at, offset = map(int, cursor.split(":")) if cursor else (0, 0)
        found: list[WorkView] = []
        while at < len(lanes):
            queue, lane = lanes[at]
            ask = min(limit - len(found), _PAGE)
            page = await self._client.monitor.page(queue, lane, offset=offset, limit=ask)
            found += [_view(queue, job) for job in page.jobs]
            at, offset = (at, offset + ask) if page.more else (at + 1, 0)
            if len(found) >= limit:
                return Page(tuple(found), f"{at}:{offset}" if at < len(lanes) else "")
        return Page(tuple(found))

    async def show(self, name: str, work_id: str) -> WorkView | None:
        job = await self._client.monitor.get_job(name, work_id)
        return None if job is None else _view(name, job)

    async def act(self, action: str, name: str, work_ids: Sequence[str]) -> Done:
        """``retry`` (or ``replay``) and ``drop`` take failed jobs, all of the queue when none is
        named; ``rm`` takes jobs out of whatever lane they stand in; the rest is for the queue."""
        client = self._client
        match action:
            case "retry" | "replay":
                ids = work_ids or await self._failed(name)
                return await _in_batches(ids, lambda some: client.retry_failed_batch(name, some))
            case "drop":
                ids = work_ids or await self._failed(name)
                return await self._remove(name, "failed", ids)
            case "rm":
                return await self._remove_anywhere(name, work_ids)
            case "pause":
                was = await client.is_paused(name)
                await client.pause(name)
                return Done(0 if was else 1)
            case "resume":
                return Done(await client.resume(name))
            case "rebuild":
                return await self._rebuild(name)
            case _:
                raise UnknownName("action", action, self.actions)

    async def watch(self, *, name: str = "") -> AsyncIterator[WorkView]:
        """Jobs as they change, seen twice a second; what changed twice in between is told once."""
        seen: dict[tuple[str, str], int] = {}
        began_ms = self._client.now_ms()
        while True:
            newest: dict[tuple[str, str], int] = {}
            for job in (await self.find(name=name, limit=_PAGE)).items:
                key, changed_ms = (job.name, job.work_id), job.detail["updated_ms"] or 0
                newest[key] = changed_ms
                if changed_ms > seen.get(key, began_ms - 1):
                    yield job
            seen = newest
            await asyncio.sleep(_LOOK_S)

    # Inside ---------------------------------------------------------------------------------

    async def _queue(self, name: str) -> QueueView:
        counts = await self._client.monitor.counts(name)
        groups = await self._client.monitor.groups(name)
        lined_up = sum(group.waiting_count for group in groups)
        return QueueView(
            protocol="omniq",
            name=name,
            waiting=counts.wait + lined_up,
            running=counts.active,
            delayed=counts.delayed,
            failed=counts.failed,
            paused=counts.paused,
            detail={
                "completed_kept": counts.completed,
                "groups": len(groups),
                "groups_ready": counts.groups_ready,
                "waiting_in_groups": lined_up,
            },
        )

    async def _rebuild(self, name: str) -> Done:
        """Groups always; the mirrors of SDK 4.x where anybody keeps them."""
        mirrors = await self._client.has_mirrors(name)
        repair = await self._client.rebuild(name, mirrors=mirrors or None)
        note = f"{repair.jobs_indexed} jobs indexed for SDK 4.x" if repair.mirrors else ""
        return Done(repair.groups_mended, note=note)

    async def _lanes(self, name: str, state: str) -> AsyncIterator[tuple[str, str]]:
        for queue in [name] if name else await self._client.monitor.scan_queues():
            for each in [state] if state else _STATES:
                yield queue, each
                if each == "wait":
                    for group in await self._client.monitor.groups(queue):
                        if group.waiting_count:
                            yield queue, f"g:{group.gid}:wait"

    async def _failed(self, name: str) -> list[str]:
        ids: list[str] = []
        cursor = ""
        while True:
            page = await self.find(name=name, state="failed", limit=_PAGE, cursor=cursor)
            ids += [job.work_id for job in page.items]
            cursor = page.cursor
            if not cursor:
                return ids

    async def _remove_anywhere(self, name: str, work_ids: Sequence[str]) -> Done:
        by_lane: dict[Lane, list[str]] = {}
        refused: list[str] = []
        for at in range(0, len(work_ids), _PAGE):
            some = work_ids[at : at + _PAGE]
            known = {job.job_id: job for job in await self._client.monitor.find_jobs(name, some)}
            for work_id in some:
                job = known.get(work_id)
                if job is None:
                    refused.append(f"{work_id}: NO_JOB")
                elif job.state == "active":
                    refused.append(f"{work_id}: ACTIVE")
                else:
                    by_lane.setdefault(_lane_of(job), []).append(work_id)
        changed = 0
        for lane, ids in by_lane.items():
            done = await self._remove(name, lane, ids)
            changed += done.changed
            refused += done.refused
        return Done(changed, tuple(refused))

    async def _remove(self, name: str, lane: Lane, ids: Sequence[str]) -> Done:
        return await _in_batches(ids, lambda some: self._client.remove_jobs_batch(name, lane, some))


async def _in_batches(ids: Sequence[str], batch: _Batch) -> Done:
    changed = 0
    refused: list[str] = []
    for at in range(0, len(ids), MAX_BATCH):
        for item in await batch(ids[at : at + MAX_BATCH]):
            if item.status == "OK":
                changed += 1
            else:
                refused.append(f"{item.job_id}: {item.reason}")
    return Done(changed, tuple(refused))


def _state(state: str) -> str:
    if state == "dead":
        return "failed"
    if state and state not in _STATES:
        raise UnknownName("state", state, _STATES)
    return state


def _lane_of(job: JobInfo) -> Lane:
    if job.state == "wait" and job.gid:
        return "gwait"
    return job.state  # type: ignore[return-value]  # active was sorted out before


def _view(queue: str, job: JobInfo) -> WorkView:
    try:
        payload: Any = codec.decode(job.payload)
    except codec.JsonError:
        payload = job.payload
    facts = ("gid", "max_attempts", "timeout_ms", "backoff_ms", "created_ms", "updated_ms")
    detail = {name: getattr(job, name) for name in (*facts, "due_ms", "lock_until_ms")}
    return WorkView(
        protocol="omniq",
        name=queue,
        work_id=job.job_id,
        state=job.state,
        queue=queue,
        attempt=job.attempt,
        at=None if job.updated_ms is None else datetime.fromtimestamp(job.updated_ms / 1000, UTC),
        error=job.last_error,
        detail={**detail, "payload": payload},
    )
