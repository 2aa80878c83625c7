"""The agent loop: ordered work, one batch at a time per lane, many pieces in one commit.

Each delivery belongs to a lane (a partition, an entity). Within a lane deliveries keep the
order in which they were taken: while one batch is committed the next one gathers, so the
busier a lane, the larger its batches, and one durable write stands for many messages. No
handlers, no threads, no timeouts: `commit` decides, and its outcomes are settled in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from datetime import timedelta

from penstock.core.delivery import Delivery, Gone, Settlement, Source, Unknown
from penstock.core.outcome import Interrupted, Lost, Outcome, outcome_of_error
from penstock.runtime.credit import Credit
from penstock.runtime.job import Job
from penstock.runtime.pull import Desk, Pulls
from penstock.runtime.quiet import Quiet
from penstock.runtime.workshop import Plan, Workshop

__all__ = ["AgentLoop", "Commit", "LaneOf"]

_log = logging.getLogger("penstock.runtime")

_NO_HANDLER = Plan.of_nothing()
_GIVE_BACK_S = 10.0

LaneOf = Callable[[Delivery], Hashable]
Commit = Callable[[Hashable, Sequence[Delivery]], Awaitable[Sequence[Outcome]]]


class _Lane:
    __slots__ = ("task", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[tuple[Job, Desk]] = deque()
        self.task: asyncio.Task[None] | None = None


class AgentLoop:
    """``start`` begins to pull; ``stop`` drains. Both are safe to repeat.

    ``commit`` gets a batch of one lane and returns one outcome for each delivery, in order;
    when it raises, all of the batch failed. It is never called twice at once for one lane.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        lane_of: LaneOf,
        commit: Commit,
        shop: Workshop,
        *,
        in_hand: int = 1024,
        batch: int = 256,
        idle_wait: timedelta = timedelta(seconds=5),
    ) -> None:
        self._lane_of = lane_of
        self._commit = commit
        self._shop = shop
        self._batch = batch
        self._credit = Credit(in_hand, idle_wait=idle_wait, clock=shop.clock)
        desks = [Desk(source, self._credit.seat()) for source in sources]
        self._pulls = Pulls(desks, self._credit, self._accept, shop.clock)
        self._lanes: dict[Hashable, _Lane] = {}
        self._jobs: set[Job] = set()
        self._quiet = Quiet(self._jobs)
        self._giving_back = False

    @property
    def running(self) -> int:
        """Deliveries in hand."""
        return len(self._jobs)

    async def start(self) -> None:
        self._pulls.start()

    def force(self) -> None:
        """Cut the drain short."""
        self._quiet.hurry()

    async def stop(self, grace: timedelta = timedelta(seconds=30)) -> None:
        """Take no more, commit what is in hand within ``grace``, give back the rest."""
        if self._pulls.stopping:
            return
        await self._pulls.stop()
        if not await self._quiet.wait(grace.total_seconds()):
            self._giving_back = True  # a commit under way is left to finish: it is one write
            await self._quiet.wait(_GIVE_BACK_S, patient=True)
        lanes = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in lanes:
            task.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)

    # Lanes ----------------------------------------------------------------------------------

    def _accept(self, delivery: Delivery, desk: Desk) -> None:
        try:
            job, key = Job(delivery, _NO_HANDLER, self._shop), self._lane_of(delivery)
        except Exception:  # noqa: BLE001 - a delivery that cannot be read must not stop the others
            _log.exception("source %s handed out something unreadable", desk.source.name)
            self._credit.release(desk.seat)
            return
        job.wait()
        self._jobs.add(job)
        self._shop.ticker.add(job)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        lane.waiting.append((job, desk))
        if lane.task is None:
            work = self._serve(key, lane)
            lane.task = asyncio.get_running_loop().create_task(work, name=f"lane:{key}")

    async def _serve(self, key: Hashable, lane: _Lane) -> None:
        while lane.waiting:
            count = min(len(lane.waiting), self._batch)
            batch = [lane.waiting.popleft() for _ in range(count)]
            try:
                await self._settle(batch, await self._decided(key, [job for job, _ in batch]))
            finally:
                for job, desk in batch:
                    self._end(job, desk)
        del self._lanes[key]

    async def _decided(self, key: Hashable, jobs: Sequence[Job]) -> dict[Job, Outcome]:
        """An outcome for each job; those lost while they waited are not committed."""
        if self._giving_back:
            return {job: Interrupted() for job in jobs}
        decided: dict[Job, Outcome] = {job: job.verdict for job in jobs if job.verdict is not None}
        held = [job for job in jobs if job not in decided]
        if not held:
            return decided
        try:
            outcomes = await self._commit(key, [job.delivery for job in held])
            decided.update(zip(held, outcomes, strict=True))
        except Exception as error:  # noqa: BLE001 - a commit that raised did not happen
            _log.exception("a commit of %d deliveries failed in lane %s", len(held), key)
            decided.update(dict.fromkeys(held, outcome_of_error(error)))
        return decided

    async def _settle(self, batch: Sequence[tuple[Job, Desk]], decided: dict[Job, Outcome]) -> None:
        for job, _ in batch:
            now = self._shop.clock()
            outcome = Lost() if job.lapsed(now) else decided[job]
            job.begin_settling(now)
            settlement: Settlement
            try:
                async with asyncio.timeout(self._shop.settle_within_s):
                    settlement = await job.delivery.settle(outcome)
            except TimeoutError:
                settlement = Unknown("settling took too long")
            except Exception as error:  # noqa: BLE001 - an adapter that raises has not answered
                settlement = Unknown(str(error))
            if isinstance(settlement, (Gone, Unknown)):
                _log.warning("not settled: %s", settlement.reason, extra=job.ids)
            self._shop.report.ended(job.invocation, outcome, settlement, now - job.started_at)

    def _end(self, job: Job, desk: Desk) -> None:
        self._shop.ticker.discard(job)
        job.end()
        self._jobs.discard(job)
        self._credit.release(desk.seat)
        self._quiet.look()
