"""The doorbell of a queue: sleep until there may be something to reserve, whoever published it.

Redis itself tells of a change of the queue's lanes (`RedisSentry`): an idle consumer then
sends nothing, and hears of work in a round trip. Where Redis cannot do that, a cheap look
(two EXISTS) every ``poll`` takes its place.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.broker.redis_port import RedisLost, RedisUnreachable
from penstock.broker.redis_sentry import RedisSentry, Watch
from penstock.broker.resp import RedisRefused
from penstock.protocols.omniq.wire import queue_base

if TYPE_CHECKING:
    from penstock.protocols.omniq.client import OmniqClient

__all__ = ["Doorbell"]

_log = logging.getLogger("penstock.omniq")

_HERD_S: Final = 0.001  # all idle consumers hear the bell: let one be first
_FIRST_POLL_S: Final = 0.01
_PAUSED_POLLS: Final = 5  # a paused queue is looked at so much less often


class Doorbell:
    """Of one queue. ``poll`` is used where the server cannot tell of changes."""

    def __init__(self, client: OmniqClient, queue: str, poll: timedelta) -> None:
        base = queue_base(queue)
        self._client = client
        self._paused = f"{base}:paused".encode()
        self._wait = f"{base}:wait".encode()
        self._ready = f"{base}:groups:ready".encode()
        self._poll_s = poll.total_seconds()
        self._deaf = False

    async def arrival(self, within_s: float) -> bool:
        """Return true as soon as there may be a job to take, false after ``within_s``."""
        until = time.monotonic() + within_s
        if not self._deaf:
            sentry = await self._client.bells.sentry()
            if sentry is not None:
                try:
                    return await self._listen(sentry, until)
                except (RedisLost, RedisUnreachable):
                    return False
                except RedisRefused as error:
                    _log.warning("Redis cannot tell of changes, so OmniQ polls: %s", error)
            self._deaf = True
        return await self._look_again_and_again(until)

    async def _listen(self, sentry: RedisSentry, until: float) -> bool:
        while True:
            watch = await sentry.watch(self._paused, self._wait, self._ready)
            try:
                if _inviting(watch):
                    return True
                left_s = until - time.monotonic()
                if left_s <= 0 or not await watch.changed(left_s):
                    return False
            finally:
                sentry.forget(watch)
            await asyncio.sleep(random.uniform(0, _HERD_S))

    async def _look_again_and_again(self, until: float) -> bool:
        port = await self._client.port()
        gap_s = min(_FIRST_POLL_S, self._poll_s)
        while True:
            try:
                paused = await port.execute("EXISTS", self._paused)
                if not paused and await port.execute("EXISTS", self._wait, self._ready):
                    return True
            except (RedisLost, RedisUnreachable, RedisRefused):
                return False
            longest_s = self._poll_s * (_PAUSED_POLLS if paused else 1)
            gap_s = min(gap_s * 2, longest_s)
            left_s = until - time.monotonic()
            if left_s <= 0:
                return False
            await asyncio.sleep(min(gap_s * random.uniform(0.8, 1.0), left_s))


def _inviting(watch: Watch) -> bool:
    paused, waiting, ready = watch.present
    return not paused and (waiting or ready)
