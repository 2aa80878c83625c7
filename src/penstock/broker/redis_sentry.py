"""A sentry tells when a key of Redis changes, whoever changes it, without asking again and again.

It reads the key on a connection of its own that has client tracking switched on: Redis then
remembers the reader and tells it once when the key is touched, by any client, scripts
included. So waiting costs nothing on either side, and needs no word of the one who writes.
A server or proxy that cannot do this refuses at the first look; poll there instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.broker.redis_cluster import RedisClusterLink
from penstock.broker.redis_link import RedisLink
from penstock.broker.redis_port import RedisTarget
from penstock.broker.resp import Push, RedisRefused

__all__ = ["RedisSentry", "Watch"]

_GREETING: Final = (("HELLO", "3"), ("CLIENT", "TRACKING", "ON"))


class Watch:
    """Some keys as they were at one instant, and whether one of them changed since."""

    __slots__ = ("_changed", "keys", "present")

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys = keys
        self.present: Sequence[bool] = ()
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def changed(self, within_s: float) -> bool:
        """Whether a key changes within that time (or the sentry cannot know any more)."""
        await asyncio.wait((self._changed,), timeout=within_s)
        return self._changed.done()

    @property
    def stale(self) -> bool:
        """Whether a key has changed."""
        return self._changed.done()

    def fire(self) -> None:
        if not self._changed.done():
            self._changed.set_result(None)


class RedisSentry:
    """One connection (to each node of a cluster) for any number of watched keys.

    One sentry per event loop.
    """

    def __init__(
        self, url: str | RedisTarget, *, cluster: bool = False, timeout: float = 10.0
    ) -> None:
        kind = RedisClusterLink if cluster else RedisLink
        self._link = kind(url, timeout=timeout, greeting=_GREETING, told=self._told)
        self._watches: dict[bytes, set[Watch]] = {}

    async def watch(self, *keys: bytes) -> Watch:
        """Look which of ``keys`` are there, and be told of the next change. `forget` it after.

        Raises `RedisRefused` where the server cannot do this, and what `RedisLink` raises.
        """
        watch = Watch(keys)
        for key in keys:  # before the look: the news may come ahead of the answer
            self._watches.setdefault(key, set()).add(watch)
        try:
            replies = await self._link.pipeline([("EXISTS", key) for key in keys])
            for reply in replies:
                if isinstance(reply, RedisRefused):
                    raise reply
        except BaseException:
            self.forget(watch)
            raise
        watch.present = [bool(reply) for reply in replies]
        return watch

    def forget(self, watch: Watch) -> None:
        """Nobody waits for this one any more."""
        for key in watch.keys:
            watching = self._watches.get(key)
            if watching is not None:
                watching.discard(watch)
                if not watching:
                    del self._watches[key]

    async def aclose(self) -> None:
        """Close the connection; all watches end."""
        await self._link.aclose()
        self._told(None)

    def _told(self, news: Push | None) -> None:
        """``[invalidate, keys]``; without keys everything was flushed, without news we are deaf."""
        keys = news[1] if news is not None and news[0] == b"invalidate" else None
        if news is not None and news[0] != b"invalidate":
            return
        for key in list(self._watches) if not isinstance(keys, list) else keys:
            for watch in self._watches.get(key, ()):
                watch.fire()
