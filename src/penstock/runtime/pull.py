"""Pulling: one puller per source asks for credit, takes, and hands over what it got.

A source that fails is asked again after a growing pause; it never ends its puller, and
never disturbs the other sources.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.core.delivery import Delivery, Source, SourceLost
from penstock.runtime.credit import Credit, Seat

__all__ = ["Desk", "Pulls"]

_log = logging.getLogger("penstock.runtime")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_TOO_QUICK_S = 0.002
_STOP_WITHIN_S = 10.0
_PULLER_END_S = 2.0


@dataclass(slots=True, eq=False)
class Desk:
    """One source with its seat and puller, and when it was last heard (for the watchdog)."""

    source: Source
    seat: Seat
    heard_at: float = 0.0
    received: int = 0
    lost: bool = False
    puller: asyncio.Task[None] | None = None


class Pulls:
    """All pullers of a loop. ``accept`` owns each delivery it is given, and its credit."""

    def __init__(
        self,
        desks: Sequence[Desk],
        credit: Credit,
        accept: Callable[[Delivery, Desk], None],
        clock: Callable[[], float],
    ) -> None:
        self.desks = desks
        self.stopping = False
        self._credit = credit
        self._accept = accept
        self._clock = clock
        self._dropped: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        for desk in self.desks:
            if desk.puller is None:
                self._open(desk)

    def rearm(self, desk: Desk) -> None:
        """Drop the take that is under way and begin a new one."""
        if desk.puller is not None and not self.stopping:
            desk.puller.cancel()
            self._dropped.add(desk.puller)
            desk.puller.add_done_callback(self._dropped.discard)
            self._open(desk)

    async def stop(self) -> None:
        """Take no more; sources give back what they fetched. Bounded, whatever sources do."""
        self.stopping = True
        pullers = [desk.puller for desk in self.desks if desk.puller is not None]
        pullers += self._dropped
        for desk in self.desks:
            if not desk.seat.polling and desk.puller is not None:
                desk.puller.cancel()
        stops = [asyncio.ensure_future(desk.source.stop()) for desk in self.desks]
        if stops:
            done, late = await asyncio.wait(stops, timeout=_STOP_WITHIN_S)
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

    def _open(self, desk: Desk) -> None:
        desk.heard_at = self._clock()
        loop = asyncio.get_running_loop()
        desk.puller = loop.create_task(self._pull(desk), name=f"pull:{desk.source.name}")

    async def _pull(self, desk: Desk) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self.stopping:
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
        asked_at = self._clock()
        grant = await self._credit.grant(desk.seat)
        granted_at = self._clock()
        if granted_at - asked_at > _TOO_QUICK_S:
            desk.heard_at = granted_at  # it was us who did not listen
        taken: Sequence[Delivery] = ()
        try:
            taken = await desk.source.take(grant.count, grant.wait)
        finally:
            self._credit.took(desk.seat, grant.count, len(taken))
        if taken:
            desk.heard_at = self._clock()
            desk.received += len(taken)
            for delivery in taken:
                self._accept(delivery, desk)
        elif not self.stopping and self._clock() - granted_at < _TOO_QUICK_S:
            await asyncio.sleep(_TOO_QUICK_S)  # a source that never waits must not spin
