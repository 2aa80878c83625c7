"""Credit: who may take how much, so that nothing is pulled that could not start at once.

All sources of a worker share one pool of slots. A source asks for credit, takes no more
than it was granted, and hands the unused part back; a running job holds one. The rules:

- A source alone may ask for all that is free and wait long.
- Among several, one that just had work (*warm*) gets a fair share and waits briefly; one
  that had none (*cold*) waits long, but holds a single credit. So an idle queue never
  starves a busy one.
- Seats may share a `Pool` of their own, such as the few processes of ``cpu=True`` handlers: what
  could only wait for one of those is not taken either.
- When slots are scarce, cold sources take turns with short polls, so that each is looked at
  about twice a second; while warm ones are in line, cold ones only glance, ten times a second.

Those in line are served first come, first served. No timers: every change of the pool deals
anew, once per turn of the event loop, which also gathers single credits into batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from math import inf

from penstock.runtime.ticker import stopwatch

__all__ = ["Credit", "Grant", "Pool", "Seat"]

_WARM_WAIT = timedelta(milliseconds=100)
_GLANCE = timedelta(milliseconds=5)
_GLANCE_GAP_S = 0.1
_ROUND_S = 0.5  # under scarcity every source is polled about once in this time
_SHORTEST_S, _LONGEST_SHORT_S = 0.02, 0.25


@dataclass(frozen=True, slots=True)
class Grant:
    """``count`` deliveries may be taken, waiting for at most ``wait``."""

    count: int
    wait: timedelta


class Pool:
    """A limit that several seats share."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.held = 0


class Seat:
    """One source's place at the table. ``cap``: how many of its jobs may run at once."""

    __slots__ = ("cap", "glanced_at", "held", "polling", "pool", "waiter", "want")

    def __init__(self, cap: float = inf, pool: Pool | None = None) -> None:
        self.cap = cap
        self.pool = pool
        self.held = 0
        self.polling = 0
        self.want = 0  # 0: cold
        self.glanced_at = -inf
        self.waiter: asyncio.Future[Grant] | None = None

    @property
    def room(self) -> float:
        own = self.cap - self.held
        return own if self.pool is None else min(own, self.pool.limit - self.pool.held)

    def hold(self, count: int) -> None:
        """Hold so many credits more, or fewer."""
        self.held += count
        if self.pool is not None:
            self.pool.held += count


class Credit:
    """The shared pool. All methods belong to the loop's thread."""

    def __init__(
        self,
        slots: int,
        *,
        idle_wait: timedelta = timedelta(seconds=5),
        clock: Callable[[], float] = stopwatch,
    ) -> None:
        self.slots = slots
        self.free = slots
        self._idle_wait = idle_wait
        self._clock = clock
        self._seats: list[Seat] = []
        self._line: list[Seat] = []
        self._dealing = False

    def seat(self, cap: int | None = None, pool: Pool | None = None) -> Seat:
        seat = Seat(inf if cap is None else cap, pool)
        self._seats.append(seat)
        return seat

    async def grant(self, seat: Seat) -> Grant:
        """Wait for credit. Cancelling the wait gives back what was granted meanwhile."""
        waiter: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        seat.waiter = waiter
        self._line.append(seat)
        self._deal_soon()
        try:
            return await waiter
        except asyncio.CancelledError:
            if seat in self._line:
                self._line.remove(seat)
            elif waiter.done() and not waiter.cancelled():
                self.took(seat, waiter.result().count, 0)
            raise
        finally:
            if seat.waiter is waiter:
                seat.waiter = None

    def took(self, seat: Seat, granted: int, got: int) -> None:
        """A take ended with ``got`` deliveries; each of them holds one credit from now on."""
        unused = granted - got
        self.free += unused
        seat.hold(-unused)
        seat.polling -= granted
        seat.want = 4 * got + 1 if got else 0
        if unused and self._line:
            self._deal_soon()

    def release(self, seat: Seat) -> None:
        """A job ended."""
        self.free += 1
        seat.hold(-1)
        if self._line and not self._dealing:
            self._deal_soon()

    def _deal_soon(self) -> None:
        if not self._dealing:
            self._dealing = True
            asyncio.get_running_loop().call_soon(self.deal)

    def deal(self) -> None:
        """Grant what can be granted to those in line."""
        self._dealing = False
        self._round()
        if self.free > 0 and self._line and not self._contended():
            self._round()  # the warm ones have theirs: the cold need not stand aside

    def _round(self) -> None:
        contended = self._contended()
        sharing = sum(1 for seat in self._line if seat.room > 0)
        still: list[Seat] = []
        for seat in self._line:
            if self.free <= 0 or seat.room <= 0:
                still.append(seat)
                continue
            offer = self._offer(seat, sharing, contended)
            sharing -= 1
            if offer is None:
                still.append(seat)
            else:
                self._give(seat, offer)
        self._line = still

    def _contended(self) -> bool:
        return any(seat.want and seat.room > 0 for seat in self._line)

    def _offer(self, seat: Seat, sharing: int, contended: bool) -> Grant | None:
        room = int(min(self.free, seat.room))
        if len(self._seats) == 1:
            return Grant(room, self._idle_wait)
        if seat.want:
            share = max(1, self.free // max(sharing, 1))
            return Grant(min(room, seat.want, share), _WARM_WAIT)
        if not contended:
            return Grant(1, self._cold_wait())
        now = self._clock()
        if now - seat.glanced_at < _GLANCE_GAP_S or self._cold_polls() >= self._idle_cap:
            return None
        seat.glanced_at = now
        return Grant(1, _GLANCE)

    def _give(self, seat: Seat, offer: Grant) -> None:
        self.free -= offer.count
        seat.hold(offer.count)
        seat.polling += offer.count
        if seat.waiter is not None and not seat.waiter.done():
            seat.waiter.set_result(offer)
        else:  # cancelled in this very turn
            self.took(seat, offer.count, 0)

    @property
    def _idle_cap(self) -> int:
        return max(1, self.slots // 4)

    def _cold_polls(self) -> int:
        return sum(1 for seat in self._seats if seat.polling and not seat.want)

    def _cold_wait(self) -> timedelta:
        if len(self._seats) <= self._idle_cap:
            return self._idle_wait
        turn_s = _ROUND_S * self.slots / len(self._seats)
        return min(
            timedelta(seconds=min(max(turn_s, _SHORTEST_S), _LONGEST_SHORT_S)), self._idle_wait
        )
