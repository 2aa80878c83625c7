"""Which Redis a client talks to: a URL, a client of the caller's, a cluster, or our own server."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.broker.redis_port import RedisLost, RedisPort, RedisTarget, SyncRedisPort
from penstock.broker.resp import Arg, Reply
from penstock.core.errors import ConfigError

if TYPE_CHECKING:
    from penstock.broker.redis_sentry import RedisSentry

__all__ = ["Bells", "OpenDoor", "open_door", "open_sync_door", "twin_port"]

_ABOUT: Final[tuple[Arg, ...]] = ("INFO", "cluster")
_ASKED_AGAIN: Final = 5


@dataclass(slots=True)
class OpenDoor:
    """What was asked for, and the server that was started for it, if any."""

    url: str | None
    redis: Any
    cluster: bool  # asked for, or seen when the door was opened
    folder: str | None
    timeout: float | None
    port: RedisPort | None = None
    server: EmbeddedRedis | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.url is not None and self.redis is not None:
            raise ConfigError("both a URL and a Redis client are given", remedy="give one.")
        if self.cluster and self.url is None:
            raise ConfigError("a cluster needs the URL of one of its nodes")
        if self.folder is not None and (self.url or self.redis is not None):
            raise ConfigError("a folder is for the embedded Redis; a URL or client was given too")

    @property
    def address(self) -> str:
        """The URL given, or that of our own server once it runs."""
        return self.url or (self.server.url if self.server is not None else "")

    def start_server(self) -> str:
        """The URL of our own server, started if it is not running yet."""
        if self.server is None:
            self.server = EmbeddedRedis(self.folder)
        return self.server.start().url

    def stop_server(self) -> None:
        """Stop our own server, if there is one."""
        if self.server is not None:
            self.server.stop()


async def open_door(door: OpenDoor) -> RedisPort:
    """The asyncio connection that was asked for; a server that is part of a cluster is seen."""
    if door.port is not None:
        return door.port
    if door.redis is not None:
        from penstock.broker.redis_foreign import foreign_port

        return foreign_port(door.redis)
    from penstock.broker.redis_cluster import RedisClusterLink
    from penstock.broker.redis_link import RedisLink

    if door.url is None:
        return RedisLink(await asyncio.to_thread(door.start_server), timeout=door.timeout)
    if door.cluster:
        return RedisClusterLink(door.url, timeout=door.timeout)
    link = RedisLink(door.url, timeout=door.timeout)
    try:
        if _is_clustered(await _about(link)):
            door.cluster = True
            await link.aclose()
            return RedisClusterLink(door.url, timeout=door.timeout)
    except BaseException:
        await link.aclose()
        raise
    return link


def open_sync_door(door: OpenDoor) -> SyncRedisPort:
    """The blocking connection that was asked for; a server that is part of a cluster is seen."""
    if door.redis is not None:
        from penstock.broker.redis_foreign import foreign_sync_port

        return foreign_sync_port(door.redis)
    from penstock.broker.redis_cluster_sync import SyncRedisClusterLink
    from penstock.broker.redis_sync import SyncRedisLink

    if door.url is None:
        return SyncRedisLink(door.start_server(), timeout=door.timeout)
    if door.cluster:
        return SyncRedisClusterLink(door.url, timeout=door.timeout)
    link = SyncRedisLink(door.url, timeout=door.timeout)
    try:
        if _is_clustered(_about_sync(link)):
            door.cluster = True
            link.close()
            return SyncRedisClusterLink(door.url, timeout=door.timeout)
    except BaseException:
        link.close()
        raise
    return link


def twin_port(door: OpenDoor) -> RedisPort | None:
    """The caller's blocking client for use on an event loop, if that is what was given."""
    if door.redis is None:
        return None
    from penstock.broker.redis_foreign import foreign_sync_port, threaded_port

    return threaded_port(foreign_sync_port(door.redis))


class Bells:
    """The sentry of a client: made when a consumer first waits, closed with the client."""

    def __init__(self, door: OpenDoor) -> None:
        self._door = door
        self._sentry: RedisSentry | None = None

    async def sentry(self) -> RedisSentry | None:
        """Who tells of changes; ``None`` where only the caller's client knows how to connect."""
        if self._sentry is None:
            where = await self._where()
            if where is None:
                return None
            if self._sentry is None:
                from penstock.broker.redis_sentry import RedisSentry

                self._sentry = RedisSentry(where[0], cluster=where[1])
        return self._sentry

    async def _where(self) -> tuple[str | RedisTarget, bool] | None:
        door = self._door
        if door.redis is not None:
            from penstock.broker.redis_foreign import target_of

            return target_of(door.redis)
        if door.port is not None:
            return None
        url = door.url if door.url is not None else await asyncio.to_thread(door.start_server)
        return url, door.cluster

    async def aclose(self) -> None:
        """Stop telling."""
        sentry, self._sentry = self._sentry, None
        if sentry is not None:
            await sentry.aclose()


async def _about(link: RedisPort) -> Reply:
    """What a server says about itself; asked again if it goes away meanwhile."""
    for _ in range(_ASKED_AGAIN):
        with contextlib.suppress(RedisLost):
            return (await link.pipeline([_ABOUT]))[0]
    return (await link.pipeline([_ABOUT]))[0]


def _about_sync(link: SyncRedisPort) -> Reply:
    for _ in range(_ASKED_AGAIN):
        with contextlib.suppress(RedisLost):
            return link.pipeline([_ABOUT])[0]
    return link.pipeline([_ABOUT])[0]


def _is_clustered(about: Reply) -> bool:
    """Whether a server says so; one that may not be asked is taken as single."""
    return isinstance(about, bytes) and b"cluster_enabled:1" in about
