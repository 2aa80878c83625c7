"""The clockwork: promotes what is due, takes back what lapsed, forgets what is old.

One heap of due times serves promoter, reaper and retention. Every instance has the whole heap, and
what it does is a compare-and-set, so that any number of them may wind it: the second one
finds the work done. To spare that work, an instance that is not the steward looks later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from msgspec import Raw

from penstock.broker.errors import LinkClosed
from penstock.core.errors import PenstockError
from penstock.protocols.ojs.entry import Entry
from penstock.protocols.ojs.instants import of_ms
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal, wrong_state
from penstock.protocols.ojs.shared import Shared
from penstock.protocols.ojs.timing import Later, Purge, when_due
from penstock.protocols.ojs.unique import is_remembered

__all__ = ["Clockwork"]

_log = logging.getLogger("penstock.ojs")
_MOST: Final = 512
_LONGEST_SLEEP_S: Final = 5.0
_AGAIN_MS: Final = 1_000  # what failed, or what another instance should have done, is tried then


class Clockwork:
    """``delay_ms``: how much later than due this instance looks (0 for the steward).
    ``exempt``: jobs that must outlive their retention."""

    def __init__(
        self,
        shared: Shared,
        *,
        delay_ms: Callable[[], int] = lambda: 0,
        exempt: Callable[[Entry], bool] = lambda _entry: False,
    ) -> None:
        self._shared = shared
        self._delay_ms = delay_ms
        self._exempt = exempt
        self._earlier = asyncio.Event()
        self._sleeps_until_ms = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="ojs:clockwork")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def heard(self, _job_id: str, entry: Entry | None, _record: Record | None) -> None:
        """A record changed: wake when it is due before all others."""
        if entry is not None and entry.due_ms and entry.due_ms < self._sleeps_until_ms:
            self._earlier.set()

    async def _run(self) -> None:
        while True:
            try:
                done = await self._turn()
            except LinkClosed:
                return
            except PenstockError as error:
                _log.warning("the clockwork stopped for a moment: %s", error.message)
                done = 0
            if not done:
                await self._sleep()

    async def _sleep(self) -> None:
        self._earlier.clear()
        now_ms = self._shared.now_ms
        due_ms = self._shared.books.index.next_due_ms()
        longest_ms = now_ms + round(_LONGEST_SLEEP_S * 1000)
        wanted_ms = longest_ms if due_ms is None else min(due_ms + self._delay_ms(), longest_ms)
        self._sleeps_until_ms = wanted_ms
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max((wanted_ms - now_ms) / 1000, 0.001)):
                await self._earlier.wait()

    async def _turn(self) -> int:
        """Do what is due now; how much that was."""
        index = self._shared.books.index
        due = index.due(self._shared.now_ms - self._delay_ms(), _MOST)
        if due:
            again_ms = self._shared.now_ms + _AGAIN_MS
            results = await asyncio.gather(*(self._look(i) for i in due), return_exceptions=True)
            for job_id, result in zip(due, results, strict=True):
                if isinstance(result, BaseException):
                    index.postpone(job_id, again_ms)
                    if not isinstance(result, PenstockError):
                        raise result
        return len(due)

    async def _look(self, job_id: str) -> None:
        shared, entry = self._shared, self._shared.books.index.get(job_id)
        if entry is None:
            return
        needed = self._exempt(entry)
        ripe: Purge | Later | None = None

        def decide(record: Record) -> Record | Refusal:
            nonlocal ripe
            now = shared.clock()
            exempt = needed or _in_the_way(record, now)
            found = when_due(record, now, shared.dice, shared.keeping(record), exempt=exempt)
            if isinstance(found, Record):
                return found
            ripe = found
            return wrong_state("look at", record.id, record.state, "due")

        done = await shared.books.store.change(job_id, decide)
        if not isinstance(done, Refusal):
            return
        if isinstance(ripe, Purge):
            await self._purge(job_id)
        elif isinstance(ripe, Later) and ripe.due_ms > shared.now_ms:
            shared.books.index.postpone(job_id, ripe.due_ms)
        else:
            shared.books.index.postpone(job_id, shared.now_ms + _AGAIN_MS)

    async def _purge(self, job_id: str) -> None:
        store = self._shared.books.store
        found = await store.read(job_id)
        purge_ms = found.record.at.purge_ms if found is not None else 0
        if found is None or not found.record.is_terminal or purge_ms > self._shared.now_ms:
            return
        if await store.purge(job_id, found.revision) and found.record.unique_key:
            await self._shared.locks.forget(found.record.unique_key, job_id)


def _in_the_way(record: Record, now: datetime) -> bool:
    """Whether a finished job is still remembered by its unique key."""
    policy = record.job.unique
    if not record.is_terminal or not isinstance(policy, Raw):
        return False
    return is_remembered(policy, record.state, of_ms(record.created_ms), now)
