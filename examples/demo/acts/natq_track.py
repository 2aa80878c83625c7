"""Following every record while the work goes on: for the bars, and to know when to act.

Progress within a run comes from the lifecycle events, which anybody may listen to.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from penstock import Client
from penstock.core.events import Event
from penstock.protocols.natq.wire import decode_output

if TYPE_CHECKING:
    from examples.demo.show import Bars

_PROGRESS = "penstock.event.natq.progressed"

__all__ = ["Track"]


class Track:
    """How many runs of each task are under way and over."""

    def __init__(self, bars: Bars, total: int) -> None:
        self._total = total
        self._bars = bars
        self._final: dict[str, bool] = {}
        self._running: Counter[str] = Counter()
        self._over: Counter[str] = Counter()
        self._parts: dict[str, dict[str, float]] = {}  # task → run → how far it is, 0 to 1
        self._changed = asyncio.Condition()

    @classmethod
    @asynccontextmanager
    async def of(cls, client: Client, bars: Bars, total: int) -> AsyncIterator[Track]:
        """Follow all records of a client's server, from the first one on."""
        track = cls(bars, total)
        watch = await client.natq.room.results.watch(">")

        async def follow() -> None:
            async with watch:
                async for entry in watch:
                    if not entry.deleted:
                        await track._note(entry.key, decode_output(entry.value).is_final)

        listening = await client.natq.room.link.subscribe(_PROGRESS, track._hear)
        following = asyncio.create_task(follow(), name="demo:track")
        try:
            yield track
        finally:
            await listening.unsubscribe()
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    @property
    def done(self) -> int:
        return self._over.total()

    def running(self, *tasks: str) -> int:
        return sum(self._running[task] for task in tasks)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for ``condition``, or for the end of all work: then it cannot come any more."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.done == self._total or condition())

    async def finished(self) -> None:
        """Wait until every run has its final record."""
        await self.until(lambda: False)

    async def _note(self, key: str, final: bool) -> None:
        task = key.partition(".")[0]
        before = self._final.get(key)
        if before is None:
            self._running[task] += 1
        if final and not before:
            self._running[task] -= 1
            self._over[task] += 1
            self._parts.get(task, {}).pop(key.partition(".")[2], None)
            self._show(task)
        self._final[key] = final or bool(before)
        async with self._changed:
            self._changed.notify_all()

    def _hear(
        self, _subject: bytes, _reply: bytes | None, _headers: bytes | None, payload: bytes
    ) -> None:
        event = msgspec.json.decode(payload, type=Event)
        if event.total and not self._final.get(f"{event.name}.{event.work_id}"):
            parts = self._parts.setdefault(event.name, {})
            parts[event.work_id] = (event.done or 0) / event.total
            self._show(event.name)

    def _show(self, task: str) -> None:
        self._bars.at(task, self._over[task] + math.fsum(self._parts.get(task, {}).values()))
