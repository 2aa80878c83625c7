"""A producer that never stops, and a herd of workers that dies all the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from random import Random

import penstock
from penstock.protocols.natq.client import NotEnqueued
from tests.chaos.harness import Program, Unmet, eventually
from tests.chaos.invariants import Ledger
from tests.chaos.natq_stage import Load, NatqStage

__all__ = ["Flow", "Herd"]


def _plain() -> Iterator[Load]:
    return (Load("plain", f"r{n}", {"n": n}) for n in count())


class Flow:
    """Puts in job after job, through every outage; only what was acknowledged counts."""

    def __init__(
        self,
        stage: NatqStage,
        ledger: Ledger,
        jobs: Callable[[], Iterator[Load]] = _plain,
        *,
        pause_s: float = 0.002,
    ) -> None:
        self._stage = stage
        self._ledger = ledger
        self._jobs = jobs()
        self._pause_s = pause_s
        self._over = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="producer")

    async def has_put(self, more: int) -> None:
        """Wait until so many more jobs are acknowledged."""
        wanted = len(self._ledger.of("enqueued")) + more
        await eventually(
            lambda: self._task.done() or len(self._ledger.of("enqueued")) >= wanted,
            60,
            what=f"{more} more jobs",
        )

    async def end(self) -> None:
        self._over.set()
        await self._task

    async def _run(self) -> None:
        async with penstock.connect(self._stage.server.url) as client:
            client.natq.room.publisher.timeout = 1.0
            for job in self._jobs:
                while not await self._put(client, job):
                    await asyncio.sleep(0.05)
                self._ledger.note("enqueued", job.key)
                if self._over.is_set():
                    return
                await asyncio.sleep(self._pause_s)

    async def _put(self, client: penstock.Client, job: Load) -> bool:
        """One try; when nobody knows whether it is stored, the next is under the same run id."""
        try:
            await client.enqueue(job.task, dict(job.body), run_id=job.run_id, drop_result=job.drop)
        except NotEnqueued:
            return False
        return True


class Herd:
    """Workers that live for a moment each, until `until`; their deaths are as the dice say."""

    def __init__(
        self, make: Callable[..., Program], dice: Random, *, longest_s: float = 4.0
    ) -> None:
        self._make = make
        self._dice = dice
        self._longest_s = longest_s
        self.deaths = 0
        self.drains = 0

    async def until(self, end_at: float, env: Mapping[str, str], *, url: str = "") -> None:
        """Start one worker after another, killing most and draining some."""
        while time.monotonic() < end_at:
            async with self._make(env, url=url) as worker:
                life = self._dice.uniform(0.3, self._longest_s)
                try:
                    await worker.wait(min(life, max(0.0, end_at - time.monotonic())))
                except Unmet:
                    if self._dice.random() < 0.25:
                        worker.terminate()
                        await worker.wait(60)
                        self.drains += 1
                    else:
                        worker.kill()
                        await worker.wait()
                        self.deaths += 1
