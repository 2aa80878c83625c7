"""The job loop: takes leased work from its sources, runs it side by side, settles each piece once.

One puller per source asks the shared `Credit` before it takes, so nothing is fetched that
could not start at once. Each job is one asyncio task; timeouts and heartbeats are the
ticker's. A source that fails is asked again after a growing pause, and neither a handler
nor an adapter that misbehaves ends the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from penstock.core.delivery import Delivery, Gone, Settlement, Source, SourceLost, Unknown
from penstock.core.errors import UnknownName
from penstock.core.outcome import Failed, Interrupted, Lost, Outcome, outcome_of_error
from penstock.runtime.caps import Caps
from penstock.runtime.credit import Credit, Seat
from penstock.runtime.job import Job
from penstock.runtime.quiet import Quiet
from penstock.runtime.run import outcome_of
from penstock.runtime.workshop import Plan, Workshop

__all__ = ["Desk", "JobLoop"]

_log = logging.getLogger("penstock.runtime")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_TOO_QUICK_S = 0.002
_PULLER_END_S = 2.0
_GIVE_BACK_S = 10.0
_HURRY_S = 1.0
_NOTHING = Plan.of_nothing()


@dataclass(slots=True, eq=False)
class Desk:
    """One source with its seat and puller, and when it was last heard (for the watchdog)."""

    source: Source
    seat: Seat
    heard_at: float
    received: int = 0
    lost: bool = False
    puller: asyncio.Task[None] | None = None


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
        self._caps = Caps({n: t.concurrency for n, t in shop.tasks.items() if t.concurrency})
        self.desks = [Desk(s, self._credit.seat(self._cap_of(s)), 0.0) for s in sources]
        self._on_ended = on_ended
        self._jobs: set[Job] = set()
        self._stopping = False
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
        for desk in self.desks:
            if desk.puller is None:
                self._open(desk)

    def rearm(self, desk: Desk) -> None:
        """Drop the take that is under way and begin a new one: for a source that went deaf."""
        if desk.puller is not None and not self._stopping:
            desk.puller.cancel()
            self._open(desk)

    def force(self) -> None:
        """Cut the drain short: handlers are interrupted now."""
        self._quiet.hurry()

    async def stop(self, grace: timedelta = timedelta(seconds=30)) -> None:
        """Take no more, let jobs finish within ``grace``, then interrupt and give back the rest."""
        if self._stopping:
            return
        self._stopping = True
        await self._stop_pulling()
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
        await asyncio.wait(left, timeout=1.0)

    # Pulling ------------------------------------------------------------------------------

    def _cap_of(self, source: Source) -> int | None:
        """The limit of the source's one task; enforced by its credit, not in hand."""
        task = self._shop.tasks.get(source.task) if source.task else None
        return task.concurrency if task is not None else None

    def _open(self, desk: Desk) -> None:
        desk.heard_at = self._shop.clock()
        loop = asyncio.get_running_loop()
        desk.puller = loop.create_task(self._pull(desk), name=f"pull:{desk.source.name}")

    async def _pull(self, desk: Desk) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stopping:
            try:
                await self._pull_once(desk)
            except SourceLost as error:
                _log.warning("source %s is lost: %s", desk.source.name, error)
            except Exception:  # noqa: BLE001 - a broken adapter must not end the other sources
                _log.exception("source %s failed", desk.source.name)
            else:
                pause_s = _FIRST_PAUSE_S
                desk.lost = False
                continue
            desk.lost = True
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _pull_once(self, desk: Desk) -> None:
        asked_at = self._shop.clock()
        grant = await self._credit.grant(desk.seat)
        granted_at = self._shop.clock()
        if granted_at - asked_at > _TOO_QUICK_S:
            desk.heard_at = granted_at  # it was us who did not listen
        taken: Sequence[Delivery] = ()
        try:
            taken = await desk.source.take(grant.count, grant.wait)
        finally:
            self._credit.took(desk.seat, grant.count, len(taken))
        if taken:
            desk.heard_at = self._shop.clock()
            desk.received += len(taken)
            for delivery in taken:
                self._accept(delivery, desk)
        elif not self._stopping and self._shop.clock() - granted_at < _TOO_QUICK_S:
            await asyncio.sleep(_TOO_QUICK_S)  # a source that never waits must not spin

    async def _stop_pulling(self) -> None:
        pullers = [desk.puller for desk in self.desks if desk.puller is not None]
        for desk in self.desks:
            if not desk.seat.polling and desk.puller is not None:
                desk.puller.cancel()
        stops = [asyncio.ensure_future(desk.source.stop()) for desk in self.desks]
        if stops:
            done, late = await asyncio.wait(stops, timeout=_GIVE_BACK_S)
            for stop in late:
                stop.cancel()
            for stop in done:
                if error := stop.exception():
                    _log.warning("a source did not stop cleanly", exc_info=error)
        if pullers:
            _, late_pullers = await asyncio.wait(pullers, timeout=_PULLER_END_S)
            for puller in late_pullers:
                puller.cancel()
            await asyncio.gather(*pullers, return_exceptions=True)

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
        job.verdict = Interrupted() if self._stopping else verdict
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
