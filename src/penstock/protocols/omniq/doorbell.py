"""The doorbell of a queue: sleep until there may be something to reserve, whoever published it.

Redis itself tells of a change of the queue's lanes (`RedisSentry`): an idle consumer then
sends nothing, and hears of work in a round trip. Between two waits the bell stays armed, so a
process with hundreds of idle queues asks for none of them again and again. Where Redis cannot do
that, a cheap look (two EXISTS) every ``poll`` takes its place.
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
_BELIEVED_S: Final = 5.0  # silence for longer is looked into
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
        self._sentry: RedisSentry | None = None
        self._watch: Watch | None = None
        self._believed_until = 0.0

    @property
    def quiet(self) -> bool:
        """Whether there was nothing to take and nothing has changed since, as far as is known."""
        armed = self._watch is not None and not self._watch.stale
        return armed and time.monotonic() < self._believed_until

    def close(self) -> None:
        """Listen no more."""
        if self._sentry is not None and self._watch is not None:
            self._sentry.forget(self._watch)
        self._watch = None

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
            watch = self._watch
            if watch is None:
                watch = await self._armed(sentry)
                if _inviting(watch):
                    self.close()
                    return True
            within_s = min(until, self._believed_until) - time.monotonic()
            if within_s > 0 and await watch.changed(within_s):
                self.close()
                await asyncio.sleep(random.uniform(0, _HERD_S))
                continue
            if time.monotonic() < self._believed_until:
                return False  # the time given is over; the bell stays armed
            self.close()
            return True

    async def _armed(self, sentry: RedisSentry) -> Watch:
        self._sentry = sentry
        self._watch = await sentry.watch(self._paused, self._wait, self._ready)
        self._believed_until = time.monotonic() + _BELIEVED_S
        return self._watch

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
