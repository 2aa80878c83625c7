"""A job: a run that holds a lease, renews it, and is settled once.

The ticker wakes it for whichever comes first: its timeout, its next heartbeat, or the end
of the time that settling may take. The answers of `renew` steer it: ``Gone`` ends it as
lost, ``CancelAsked`` as cancelled, ``Unknown`` only makes it ask again sooner. Where the
store gives no answers (an inferred lease) the job takes itself for lost once its last beat
is older than the term: so a process that was frozen does not write what another may have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from math import inf
from typing import Any

from penstock.core.context import LeaseLost
from penstock.core.delivery import CancelAsked, Delivery, Gone, Progress, Renewal, Unknown
from penstock.core.lease import Lease, Proof
from penstock.core.outcome import Cancelled, Lost, Outcome
from penstock.runtime.run import Run
from penstock.runtime.workshop import Plan, Workshop

__all__ = ["Job"]

_log = logging.getLogger("penstock.runtime")

_SOONER = 5  # after an unknown answer, ask again in this part of a beat
_PROGRESS_GAP_S = 0.1


class Job(Run):
    """One delivery in hand."""

    __slots__ = (
        "_newest",
        "_noting",
        "beat_at",
        "beat_s",
        "capped",
        "delivery",
        "errands",
        "fenced",
        "renewing",
        "sent_at",
        "settling",
        "term_s",
    )

    def __init__(self, delivery: Delivery, plan: Plan, shop: Workshop) -> None:
        super().__init__(delivery.invocation, plan, shop)
        self.delivery = delivery
        self.settling = False
        self.renewing = False
        self.errands: set[asyncio.Task[None]] | None = None
        self._newest: Progress | None = None
        self._noting: asyncio.Task[None] | None = None
        lease = delivery.lease
        if lease is None:
            self.term_s = self.beat_s = self.beat_at = inf
            self.fenced = True
        else:
            self._read(lease)
        self.sent_at = self.started_at
        self.capped = False
        self.due = min(self.deadline, self.beat_at)

    def _read(self, lease: Lease) -> None:
        self.term_s = lease.term.total_seconds()
        every = lease.renew_every
        self.beat_s = every.total_seconds() if every else self.term_s / 3
        self.beat_at = self.started_at + self.beat_s
        self.fenced = lease.proof is Proof.CONFIRMED

    # The clock ----------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        if self.settling:
            self.due = inf
            if self.task is not None:
                self.task.cancel()
            return
        self.look_at_clock(now)
        if now >= self.beat_at:
            self._beat(now)
        self.due = self.next_due()

    def wait(self) -> None:
        """Hold the lease only: the time limits count from `go`."""
        self.deadline = inf
        self.due = self.next_due()

    def go(self) -> None:
        """Its turn has come: count the time limits from now."""
        self.start_clock()
        self.due = self.next_due()
        self.shop.ticker.moved(self)

    def in_line(self) -> None:
        """Stored work has time: what it waits for a free thread does not count."""
        if self.call is not None and self.verdict is None:
            self.wait()
            self.call.on_start = self.go

    def next_due(self) -> float:
        return min(super().next_due(), self.beat_at)

    def stop(self, verdict: Outcome, *, gently: bool = False) -> None:
        if not self.settling:
            super().stop(verdict, gently=gently)

    def lapsed(self, now: float) -> bool:
        """Whether an inferred lease ran out: nobody would have told us."""
        return not self.fenced and now - self.sent_at > self.term_s

    def begin_settling(self, now: float) -> None:
        """The handler is done: no more beats, and a limit on the time that settling takes."""
        self.settling = True
        self.due = now + self.shop.settle_within_s
        self.shop.ticker.moved(self)

    # Heartbeats -----------------------------------------------------------------------------

    def _beat(self, now: float) -> None:
        self.beat_at = now + self.beat_s
        if isinstance(self.verdict, Lost):
            self.beat_at = inf
        elif self.lapsed(now):
            self._lose(f"no heartbeat got through for {now - self.sent_at:.1f} s")
        elif not self.renewing:
            self.renewing = True
            self._errand(self._renew(now), "renew")

    async def _renew(self, sent_at: float) -> None:
        try:
            answer: Renewal = await self.delivery.renew()
        except Exception as error:  # noqa: BLE001 - a beat that failed is a beat without answer
            _log.warning("a heartbeat failed", exc_info=True, extra=self.ids)
            answer = Unknown(str(error))
        finally:
            self.renewing = False
        if self.settling:
            return
        match answer:
            case Gone(reason):
                self._lose(reason)
            case CancelAsked(reason):
                self.sent_at = sent_at
                self.stop(Cancelled(reason))
            case Unknown():
                self.beat_at = self.shop.clock() + self.beat_s / _SOONER
                self.due = min(self.due, self.beat_at)
                self.shop.ticker.moved(self)
            case _:
                self.sent_at = sent_at

    def _lose(self, reason: str) -> None:
        self.beat_at = inf
        self.stop(Lost(reason))

    # What a context asks ------------------------------------------------------------------

    async def save(self, value: Any) -> None:
        if self.verdict is None and self.lapsed(self.shop.clock()):  # this process was frozen
            self._lose("the lease ran out")
        if isinstance(self.verdict, (Lost, Cancelled)):
            raise LeaseLost(self.stopped)
        if self.settling:  # a thread that was given up: the next attempt may be under way
            raise LeaseLost(f"this run is over: {self.stopped}")
        try:
            await self.delivery.save(value)
        except LeaseLost as error:
            self._lose(str(error))
            raise

    def note(self, progress: Progress) -> None:
        """Show the newest progress, at most ten times a second; those in between are skipped."""
        self._newest = progress
        if self._noting is None and not self.settling:
            self._noting = self._errand(self._show_progress(), "progress")

    @property
    def has_news(self) -> bool:
        return self._newest is not None

    async def last_note(self) -> None:
        """Show what was not shown yet."""
        if self._noting is not None:
            self._noting.cancel()
            self._noting = None
        await self._show_newest()

    async def _show_progress(self) -> None:
        while self._newest is not None:
            await self._show_newest()
            await asyncio.sleep(_PROGRESS_GAP_S)
        self._noting = None

    async def _show_newest(self) -> None:
        newest, self._newest = self._newest, None
        if newest is None:
            return
        self.shop.report.progressed(self.invocation, newest)
        try:
            await self.delivery.note(newest)
        except Exception:  # noqa: BLE001 - progress is advisory
            _log.debug("progress was not kept", exc_info=True, extra=self.ids)

    # Errands ------------------------------------------------------------------------------

    def _errand(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        name = f"{what}:{self.invocation.work_id}"
        task = asyncio.get_running_loop().create_task(work, name=name)
        if self.errands is None:
            self.errands = set()
        self.errands.add(task)
        task.add_done_callback(self.errands.discard)
        return task

    def end(self) -> None:
        """Nothing of this job goes on after it."""
        for errand in list(self.errands or ()):
            errand.cancel()
