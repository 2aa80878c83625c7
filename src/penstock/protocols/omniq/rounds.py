"""Rounds: promote what is due and reap what lapsed, for all who use the queue.

Every consumer walks them, ours and other SDKs'; none is needed in particular. Once a second
at the latest, and sooner when the next job falls due sooner.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final

from penstock.broker.redis_port import RedisClosed
from penstock.core import points
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.protocols.omniq.client import OmniqClient
    from penstock.protocols.omniq.options import OmniqOptions

__all__ = ["Rounds"]

_log = logging.getLogger("penstock.omniq")

_SHORTEST_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 5.0


class Rounds:
    """Of one queue: `start`, `stop`, both safe to repeat."""

    def __init__(self, client: OmniqClient, queue: str, options: OmniqOptions) -> None:
        self._client = client
        self._queue = queue
        self._options = options
        self._every_s = options.upkeep.total_seconds()
        self._walk: asyncio.Task[None] | None = None
        self._sooner = asyncio.Event()
        self._next_at = 0.0

    def start(self) -> None:
        """Begin to walk."""
        if self._walk is None:
            self._walk = asyncio.create_task(self._walking(), name=f"rounds:{self._queue}")

    def expect(self, in_s: float) -> None:
        """A job of ours falls due then: be there in time."""
        due_at = asyncio.get_running_loop().time() + in_s
        if due_at < self._next_at:
            self._next_at = due_at
            self._sooner.set()

    async def stop(self) -> None:
        """Walk no more."""
        walk, self._walk = self._walk, None
        if walk is not None:
            walk.cancel()
            await asyncio.gather(walk, return_exceptions=True)

    async def _walking(self) -> None:
        pause_s = self._every_s
        loop = asyncio.get_running_loop()
        while True:
            try:
                next_s = await self._one_round()
                pause_s = self._every_s
            except RedisClosed:
                return
            except PenstockError as error:
                _log.warning("upkeep of queue %s failed: %s", self._queue, error)
                pause_s = next_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            self._next_at = loop.time() + next_s
            while (left_s := self._next_at - loop.time()) > 0:
                self._sooner.clear()
                await _woken(self._sooner, left_s)

    async def _one_round(self) -> float:
        """Seconds until the next round."""
        options = self._options
        if points.armed:
            points.reach("omniq.round")
        tended = await self._client.tend(self._queue, options.promote_batch, options.reap_batch)
        if points.armed:
            points.reach("omniq.rounded")
        if tended.promoted >= options.promote_batch or tended.reaped >= options.reap_batch:
            return 0.0
        usual_s = self._every_s * random.uniform(0.8, 1.0)
        if tended.next_ms is None:
            return usual_s
        return min(usual_s, max(tended.next_ms / 1000, _SHORTEST_S))


async def _woken(event: asyncio.Event, within_s: float) -> None:
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return
