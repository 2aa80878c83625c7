"""A redis-py client that the caller already has, behind the same doors as our own links.

Asyncio or blocking, single node or cluster, decoding its answers or not: all are taken.
Never closed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from penstock.broker.redis_port import (
    RedisLost,
    RedisPort,
    RedisTarget,
    RedisUnreachable,
    SyncRedisPort,
)
from penstock.broker.resp import Arg, RedisRefused, Reply
from penstock.core.errors import ConfigError

__all__ = ["foreign_port", "foreign_sync_port", "target_of", "threaded_port"]

_SCAN_COUNT = 1000


def foreign_port(client: Any) -> RedisPort:
    """The asyncio door over ``redis.asyncio.Redis`` or ``redis.asyncio.RedisCluster``."""
    _check(client, wants_async=True)
    return _ForeignPort(client)


def foreign_sync_port(client: Any) -> SyncRedisPort:
    """The blocking door over ``redis.Redis`` or ``redis.RedisCluster``."""
    _check(client, wants_async=False)
    return _ForeignSyncPort(client)


def threaded_port(port: SyncRedisPort) -> RedisPort:
    """A blocking door for use on an event loop: each command waits in a thread."""
    return _ThreadedPort(port)


def target_of(client: Any) -> tuple[RedisTarget, bool] | None:
    """Where a client of the caller connects, and whether that is a cluster.

    ``None`` where only redis-py knows how: a sentinel, TLS, a provider of credentials.
    """
    pool = getattr(client, "connection_pool", None)
    if pool is None:  # a cluster: any node will do
        known: dict[str, Any] = getattr(client, "connection_kwargs", None) or (
            client.get_connection_kwargs()
        )
        nodes = list(client.nodes_manager.startup_nodes.values())
        if not nodes:
            return None
        known = {**known, "host": nodes[0].host, "port": nodes[0].port}
    else:
        if pool.connection_class.__name__ not in _PLAIN:
            return None
        known = pool.connection_kwargs
    if known.get("credential_provider") is not None or known.get("ssl"):
        return None
    return _target(known), pool is None


_PLAIN = ("Connection", "UnixDomainSocketConnection")


def _target(known: dict[str, Any]) -> RedisTarget:
    return RedisTarget(
        host=known.get("host") or "127.0.0.1",
        port=int(known.get("port") or 6379),
        path=known.get("path"),
        username=known.get("username"),
        password=known.get("password"),
        database=int(known.get("db") or 0),
    )


class _ForeignPort:
    def __init__(self, client: Any) -> None:
        self._client = client

    async def execute(self, *args: Arg) -> Reply:
        try:
            return await self._client.execute_command(*args)
        except Exception as error:
            raise _ours(error) from error

    async def pipeline(self, commands: Sequence[tuple[Arg, ...]]) -> list[Reply]:
        replies: list[Reply] = []
        for command in commands:
            try:
                replies.append(await self.execute(*command))
            except RedisRefused as refused:
                replies.append(refused)
        return replies

    async def scan(self, pattern: str) -> AsyncIterator[bytes]:
        async for key in self._client.scan_iter(match=pattern, count=_SCAN_COUNT):
            yield key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")

    async def aclose(self) -> None:
        """The caller closes what the caller opened."""


class _ForeignSyncPort:
    def __init__(self, client: Any) -> None:
        self._client = client

    def execute(self, *args: Arg) -> Reply:
        try:
            reply: Reply = self._client.execute_command(*args)
        except Exception as error:
            raise _ours(error) from error
        return reply

    def pipeline(self, commands: Sequence[tuple[Arg, ...]]) -> list[Reply]:
        replies: list[Reply] = []
        for command in commands:
            try:
                replies.append(self.execute(*command))
            except RedisRefused as refused:
                replies.append(refused)
        return replies

    def scan(self, pattern: str) -> Iterator[bytes]:
        for key in self._client.scan_iter(match=pattern, count=_SCAN_COUNT):
            yield key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")

    def close(self) -> None:
        """The caller closes what the caller opened."""


class _ThreadedPort:
    """Closing it closes nothing: the door behind it is somebody else's."""

    def __init__(self, port: SyncRedisPort) -> None:
        self._port = port

    async def execute(self, *args: Arg) -> Reply:
        return await asyncio.to_thread(self._port.execute, *args)

    async def pipeline(self, commands: Sequence[tuple[Arg, ...]]) -> list[Reply]:
        return await asyncio.to_thread(self._port.pipeline, commands)

    async def scan(self, pattern: str) -> AsyncIterator[bytes]:
        for key in await asyncio.to_thread(lambda: list(self._port.scan(pattern))):
            yield key

    async def aclose(self) -> None:
        return


def _check(client: Any, *, wants_async: bool) -> None:
    if not hasattr(client, "execute_command"):
        raise ConfigError(
            f"{type(client).__name__} is not a redis-py client",
            remedy="pass redis.asyncio.Redis, redis.Redis, a RedisCluster of either, or a URL.",
        )
    is_async = ".asyncio" in "".join(base.__module__ for base in type(client).__mro__)
    if is_async != wants_async:
        right = "redis.asyncio.Redis" if wants_async else "redis.Redis"
        raise ConfigError(
            f"a {'blocking' if wants_async else 'asyncio'} Redis client was given",
            remedy=f"pass {right}, or use the other OmniQ client.",
        )


def _ours(error: Exception) -> Exception:
    """The same failure in the words of our own links."""
    from redis import exceptions as theirs

    if isinstance(error, theirs.NoScriptError):
        return RedisRefused("NOSCRIPT No matching script.")
    if isinstance(error, (theirs.ConnectionError, theirs.TimeoutError)):
        kind = RedisUnreachable if "connecting to" in str(error) else RedisLost
        return kind(str(error) or type(error).__name__)
    if isinstance(error, theirs.ResponseError):
        return RedisRefused(str(error))
    return error
