"""Turns: what a process has to tell and to ask of one queue, gathered into single calls.

While one call is under way, ends and requests collect for the next, so a busy process pays
one round trip for many jobs. A lease that ends makes room, and the same call fetches the job
for it, as long as the queue had enough lately; what nobody fetches soon is given back.

An end whose answer was lost is told again: its token fences it. Whether the first telling
took effect is then read from the job, which keeps the token of the lease that ended it. Leases
whose granting was not heard are asked for again by the number of the turn: else they would lapse,
and a job with one attempt would have failed without a run.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.broker.redis_port import RedisClosed, RedisLost, RedisUnreachable
from penstock.broker.resp import RedisRefused
from penstock.core import points
from penstock.core.delivery import SourceLost
from penstock.core.ids import short_token
from penstock.protocols.omniq.store import Ended, Settle, Turn
from penstock.protocols.omniq.wire import ReservedJob, now_ms

if TYPE_CHECKING:
    from penstock.protocols.omniq.client import OmniqClient

__all__ = ["Turns"]

_log = logging.getLogger("penstock.omniq")

_MOST: Final = 128  # ends, and leases, in one call: bounds how long others wait for it
_MOST_BYTES: Final = 4 * 1024 * 1024
_KEEP_S: Final = 0.25  # how long a fetched job may lie before it is given back
_GIVE_UP_S: Final = 40.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_FAULTS: Final = (RedisLost, RedisUnreachable, RedisRefused)


class _End:
    """One lease that ends. ``doubtful``: it was told, and no answer came."""

    __slots__ = ("answer", "doubtful", "give_up_at", "settle")

    def __init__(self, settle: Settle, loop: asyncio.AbstractEventLoop) -> None:
        self.settle = settle
        self.answer: asyncio.Future[Ended | None] = loop.create_future()
        self.give_up_at = loop.time() + _GIVE_UP_S
        self.doubtful = False

    def tell(self, ended: Ended | None) -> None:
        if not self.answer.done():
            self.answer.set_result(ended)


class _Ask:
    __slots__ = ("answer", "count")

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        self.count = count
        self.answer: asyncio.Future[Sequence[ReservedJob]] = loop.create_future()


class Turns:
    """Of one queue, on one event loop. `stop` gives back what was fetched for nobody."""

    def __init__(self, client: OmniqClient, queue: str) -> None:
        self.skew_ms = 0  # how far the server's clock is ahead of ours
        self._client = client
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._ends: deque[_End] = deque()
        self._asks: deque[_Ask] = deque()
        self._spare: deque[ReservedJob] = deque()
        self._spare_timer: asyncio.TimerHandle | None = None
        self._runner: asyncio.Task[None] | None = None
        self._plenty = False
        self._stopped = False
        self._pause_s = _FIRST_PAUSE_S
        self._holder = short_token()
        self._number = 0
        self._unheard: int | None = None  # the turn that may have granted leases
        self._forget_at = 0.0

    # What callers do ------------------------------------------------------------------------

    def end(self, settle: Settle) -> asyncio.Future[Ended | None]:
        """End a lease with the next call. ``None``: no answer came, however often it was told."""
        end = _End(settle, self._loop)
        self._ends.append(end)
        self._go()
        return end.answer

    async def take(self, most: int) -> Sequence[ReservedJob]:
        """Up to ``most`` leased jobs, at once; empty if there are none or the queue is paused.

        Raises `SourceLost`.
        """
        if self._spare:
            return self.spare(most)
        if self._stopped:
            return ()
        ask = _Ask(min(most, _MOST), self._loop)
        self._asks.append(ask)
        self._go()
        return await ask.answer

    async def stop(self) -> None:
        """Fetch no more, and give back what lies here. Ends are told to the last."""
        self._stopped = True
        self._return_spare()
        while self._runner is not None:
            await asyncio.wait((self._runner,))

    # The calls ------------------------------------------------------------------------------

    def _go(self) -> None:
        if self._runner is None:
            self._runner = self._loop.create_task(self._run(), name=f"turns:{self._queue}")

    async def _run(self) -> None:
        try:
            while self._ends or self._asks or self._unheard is not None:
                await self._one()
        finally:
            self._runner = None

    async def _one(self) -> None:
        if self._unheard is not None:
            if self._ends:  # what is to be told need not wait for what was not heard
                await self._turn(self._next_ends(), (), 0)
            await self._regain(self._unheard)
            return
        ends, asks = self._next_ends(), [ask for ask in self._asks if not ask.answer.done()]
        self._asks.clear()
        asked = sum(ask.count for ask in asks)
        count = min(asked + (len(ends) if self._plenty and not self._stopped else 0), _MOST)
        if ends or count:
            await self._turn(ends, asks, count)

    async def _turn(self, ends: Sequence[_End], asks: Sequence[_Ask], count: int) -> None:
        """One call, and what follows from its answer or from none."""
        try:
            turn = await self._call(ends, count)
        except RedisClosed as error:
            self._fail(asks, error)
            for end in ends:
                end.tell(None)
        except _FAULTS as error:
            self._fail(asks, error)
            self._keep_for_later(ends, error)
            if count and not isinstance(error, RedisUnreachable):
                self._unheard = self._number
                self._forget_at = self._loop.time() + _GIVE_UP_S
            await self._pause()
        except BaseException as error:
            self._fail(asks, error)
            for end in ends:
                end.tell(None)
            raise
        else:
            self._pause_s = _FIRST_PAUSE_S
            self._hand_out(turn.jobs, asks, count)
            for end, ended in zip(ends, turn.ended, strict=True):
                end.tell(await self._resolved(end, ended) if end.doubtful else ended)

    def _next_ends(self) -> list[_End]:
        """The next ends, bounded in number and size."""
        ends: list[_End] = []
        size = 0
        while self._ends and len(ends) < _MOST and size < _MOST_BYTES:
            end = self._ends.popleft()
            ends.append(end)
            size += len(end.settle.text)
        return ends

    async def _call(self, ends: Sequence[_End], count: int) -> Turn:
        if points.armed:
            points.reach("omniq.turn")
        self._number += 1
        turn = await self._client.turn(
            self._queue,
            [end.settle for end in ends],
            count=count,
            holder=self._holder,
            number=self._number,
        )
        if points.armed:
            points.reach("omniq.turned")
        if turn.jobs:
            job = turn.jobs[0]
            self.skew_ms = job.lock_until_ms - job.timeout_ms - now_ms()
        return turn

    async def _regain(self, number: int) -> None:
        """Ask for the leases of a turn that was not heard; later again if that is not heard."""
        try:
            jobs = await self._client.regain(self._queue, self._holder, number)
        except _FAULTS as error:
            asks = list(self._asks)
            self._asks.clear()
            self._fail(asks, error)
            if self._loop.time() > self._forget_at:
                self._unheard = None
            await self._pause()
            return
        except RedisClosed:
            self._unheard = None
            return  # the turn that follows tells everybody
        self._unheard = None
        if jobs:
            _log.info("%d leases of %s were found again", len(jobs), self._queue)
            self._put_aside(jobs)
        asks = [ask for ask in self._asks if not ask.answer.done()]
        self._asks.clear()
        for ask in asks:
            if self._spare:
                ask.answer.set_result(self.spare(ask.count))
            else:
                self._asks.append(ask)

    async def _pause(self) -> None:
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)

    def _hand_out(self, jobs: Sequence[ReservedJob], asks: Sequence[_Ask], count: int) -> None:
        self._plenty = 0 < count <= len(jobs)
        at = 0
        for ask in asks:
            if not ask.answer.done():
                ask.answer.set_result(jobs[at : at + ask.count])
                at += ask.count
        if at < len(jobs):
            self._put_aside(jobs[at:])

    # What was fetched ahead -----------------------------------------------------------------

    def _put_aside(self, jobs: Sequence[ReservedJob]) -> None:
        self._spare.extend(jobs)
        if self._stopped:
            self._return_spare()
        elif self._spare_timer is None:
            self._spare_timer = self._loop.call_later(_KEEP_S, self._return_spare)

    def spare(self, most: int) -> list[ReservedJob]:
        """Up to ``most`` of those that lie here; no call."""
        taken = [self._spare.popleft() for _ in range(min(most, len(self._spare)))]
        if not self._spare:
            self._end_timer()
        return taken

    def _return_spare(self) -> None:
        """Nobody fetched these: give them back, and fetch nothing ahead until somebody asks."""
        self._end_timer()
        if self._spare:
            self._plenty = False
        while self._spare:
            job = self._spare.pop()  # the last one first: each goes to the front of its line
            self.end(Settle.release(job.job_id, job.lease_token))

    def _end_timer(self) -> None:
        if self._spare_timer is not None:
            self._spare_timer.cancel()
            self._spare_timer = None

    # When no answer came --------------------------------------------------------------------

    def _fail(self, asks: Sequence[_Ask], error: BaseException) -> None:
        self._plenty = False
        for ask in asks:
            if not ask.answer.done():
                lost = SourceLost(str(error))
                lost.__cause__ = error
                ask.answer.set_exception(lost)

    def _keep_for_later(self, ends: Sequence[_End], error: Exception) -> None:
        sent = not isinstance(error, RedisUnreachable)
        now = self._loop.time()
        for end in reversed(ends):
            end.doubtful = end.doubtful or sent
            if end.give_up_at < now or end.answer.done():
                end.tell(None)
            else:
                self._ends.appendleft(end)
        if ends:
            _log.warning("%d leases of %s will be ended again: %s", len(ends), self._queue, error)

    async def _resolved(self, end: _End, ended: Ended) -> Ended | None:
        """The true end of a lease that was ended twice, the first time without an answer."""
        if not ended.refused:
            return ended
        try:
            return await self._client.ended_by(self._queue, end.settle) or ended
        except _FAULTS:
            return None
