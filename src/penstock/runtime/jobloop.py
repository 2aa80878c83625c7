"""The job loop: takes leased work from its sources, runs it side by side, settles each piece once.

One puller per source asks the shared `Credit` before it takes, so nothing is fetched that
could not start at once. Each job is one asyncio task; timeouts and heartbeats are the
ticker's. A source that fails is asked again after a growing pause, and neither a handler
nor an adapter that misbehaves ends the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial

from penstock.core.delivery import Delivery, Gone, Settlement, Source, Unknown
from penstock.core.errors import UnknownName
from penstock.core.outcome import Failed, Interrupted, Lost, Outcome, outcome_of_error
from penstock.core.task import RunsIn
from penstock.runtime.caps import Caps
from penstock.runtime.credit import Credit, Pool
from penstock.runtime.job import Job
from penstock.runtime.pull import Desk, Pulls
from penstock.runtime.quiet import Quiet
from penstock.runtime.run import outcome_of
from penstock.runtime.workshop import Plan, Workshop

__all__ = ["JobLoop"]

_log = logging.getLogger("penstock.runtime")

_GIVE_BACK_S = 10.0
_HURRY_S = 1.0
_NOTHING = Plan.of_nothing()


class JobLoop:
    """``start`` begins to pull; ``stop`` drains. Both are safe to repeat."""

    def __init__(
        self,
        sources: Sequence[Source],
        shop: Workshop,
        *,
        slots: int = 64,
        idle_wait: timedelta = timedelta(seconds=5),
        on_ended: Callable[[], None] | None = None,
    ) -> None:
        self._shop = shop
        self._credit = Credit(slots, idle_wait=idle_wait, clock=shop.clock)
        self._caps = Caps(dict(self._limits(slots)))
        self._pools = dict(self._scarce(slots))
        self.desks = [self._desk(source) for source in sources]
        self._pulls = Pulls(self.desks, self._credit, self._accept, shop.clock)
        self._on_ended = on_ended
        self._jobs: set[Job] = set()
        self._quiet = Quiet(self._jobs)
        self.zombies = 0
        self.ended = 0

    @property
    def running(self) -> int:
        """Jobs in hand, from their start until they are settled."""
        return len(self._jobs)

    @property
    def free(self) -> int:
        return self._credit.free

    async def start(self) -> None:
        """Begin to take work."""
        self._pulls.start()

    def rearm(self, desk: Desk) -> None:
        """Drop the take that is under way and begin a new one: for a source that went deaf."""
        self._pulls.rearm(desk)

    def force(self) -> None:
        """Cut the drain short: handlers are interrupted now."""
        self._quiet.hurry()

    async def stop(self, grace: timedelta = timedelta(seconds=30)) -> None:
        """Take no more, let jobs finish within ``grace``, then interrupt and give back the rest."""
        if self._pulls.stopping:
            return
        await self._pulls.stop()
        for job, desk in self._caps.drained():
            job.stop(Interrupted())
            self._begin(job, desk)
        if not await self._quiet.wait(grace.total_seconds()):
            self._interrupt()
            give_back_s = _HURRY_S if self._quiet.hurried else _GIVE_BACK_S
            if not await self._quiet.wait(give_back_s, patient=True):
                await self._abandon()

    def _interrupt(self) -> None:
        for job in list(self._jobs):
            job.stop(Interrupted(), gently=job.call is not None and not self._quiet.hurried)

    async def _abandon(self) -> None:
        """What cannot even be given back is left to its lease."""
        left = [job.task for job in self._jobs if job.task is not None]
        _log.warning("%d jobs could not be given back in time", len(left))
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)

    def _scarce(self, slots: int) -> Iterator[tuple[RunsIn, Pool]]:
        """Where fewer handlers may run at once than there are slots."""
        for runs_in in RunsIn:
            room = self._shop.offload.room(runs_in)
            if room is not None and room < slots:
                yield runs_in, Pool(room)

    def _limits(self, slots: int) -> Iterator[tuple[str, int]]:
        """How many of a task may run at once, where that is fewer than there are slots."""
        for name, task in self._shop.tasks.items():
            room = self._shop.offload.room(task.runs_in)
            limit = min(slots, task.concurrency or slots, slots if room is None else room)
            if limit < slots:
                yield name, limit

    def _desk(self, source: Source) -> Desk:
        """A source of one task has its limits in its seat, and takes no more; others see `Caps`."""
        task = self._shop.tasks.get(source.task) if source.task else None
        if task is None:
            return Desk(source, self._credit.seat())
        pool = self._pools.get(task.runs_in)
        return Desk(source, self._credit.seat(task.concurrency, pool))

    # Jobs ---------------------------------------------------------------------------------

    def _accept(self, delivery: Delivery, desk: Desk) -> None:
        try:
            job = self._job_of(delivery)
        except Exception:  # noqa: BLE001 - a delivery that cannot be read must not stop the others
            _log.exception("source %s handed out something unreadable", desk.source.name)
            self._credit.release(desk.seat)
            return
        self._jobs.add(job)
        self._shop.ticker.add(job)
        if self._caps and not desk.source.task and not self._caps.admit(job, desk):
            return
        self._begin(job, desk)

    def _job_of(self, delivery: Delivery) -> Job:
        try:
            plan, verdict = self._shop.plan(delivery.invocation.task), None
        except UnknownName as error:
            plan, verdict = _NOTHING, outcome_of_error(error)
        job = Job(delivery, plan, self._shop)
        job.verdict = Interrupted() if self._pulls.stopping else verdict
        return job

    def _begin(self, job: Job, desk: Desk) -> None:
        if job.verdict is None:
            self._shop.report.started(job.invocation)
        job.task = asyncio.get_running_loop().create_task(
            self._work(job, desk), name=job.invocation.work_id
        )

    async def _work(self, job: Job, desk: Desk) -> None:
        outcome: Outcome = Interrupted("the worker broke off")
        settlement: Settlement = Unknown("the worker broke off")
        run_s = 0.0
        try:
            outcome = await outcome_of(job)
            now = self._shop.clock()
            run_s = now - job.started_at
            if job.lapsed(now):
                outcome = Lost("this process was stopped for longer than the lease")
            job.begin_settling(now)
            if job.has_news:
                await job.last_note()
            settlement = await job.delivery.settle(outcome)
        except asyncio.CancelledError:
            settlement = Unknown("settling took too long")
        except Exception as error:  # noqa: BLE001 - an adapter that raises has not answered
            _log.exception("settling failed", extra=job.ids)
            settlement = Unknown(str(error))
        finally:
            self._end(job, desk, outcome, settlement, run_s)

    def _end(
        self, job: Job, desk: Desk, outcome: Outcome, settlement: Settlement, run_s: float
    ) -> None:
        shop = self._shop
        shop.ticker.discard(job)
        if job.errands:
            job.end()
        if isinstance(settlement, (Gone, Unknown)):
            _log.warning("not settled: %s", settlement.reason, extra=job.ids)
        elif isinstance(outcome, Failed):
            _log.warning("failed: %s", outcome.failure.message, extra=job.ids)
        shop.report.ended(job.invocation, outcome, settlement, run_s)
        if job.call is None or job.call.ended:
            self._release(job, desk)
        else:  # a thread cannot be killed: its slot stays taken until it ends by itself
            self.zombies += 1
            job.call.on_end = partial(self._bury, job, desk)
        self._jobs.discard(job)
        self.ended += 1
        if self._on_ended is not None:
            self._on_ended()
        self._quiet.look()

    def _release(self, job: Job, desk: Desk) -> None:
        self._credit.release(desk.seat)
        if job.capped:
            for next_job, its_desk in self._caps.released(job):
                self._begin(next_job, its_desk)

    def _bury(self, job: Job, desk: Desk) -> None:
        self.zombies -= 1
        _log.info("a handler that was given up has ended", extra=job.ids)
        self._release(job, desk)
