"""How to reach a Redis, and what can go wrong on the way, whichever connection is used.

`RedisPort` (asyncio) and `SyncRedisPort` are the two small doors that protocol rooms talk
through: our own lean links, or a redis-py client that the caller already has.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from penstock.broker.resp import Arg, Reply, encode_command
from penstock.core.errors import ConfigError, PenstockError

__all__ = [
    "RedisClosed",
    "RedisLost",
    "RedisPort",
    "RedisTarget",
    "RedisUnreachable",
    "SyncRedisPort",
]


class RedisUnreachable(PenstockError):
    """No connection could be made in time; the command was not sent."""

    code = "redis.unreachable"
    remedy = "start the server, or check the address (PENSTOCK_REDIS_URL) and the firewall."


class RedisLost(PenstockError):
    """The connection broke, or no answer came in time; the command may have taken effect."""

    code = "redis.lost"
    remedy = "read back what you wrote; a publish may be repeated under the same job id."


class RedisClosed(PenstockError):
    """The link was closed by its owner."""

    code = "redis.closed"
    remedy = "open a new client."


class RedisPort(Protocol):
    """One door to Redis for asyncio. A refused command raises `RedisRefused`."""

    async def execute(self, *args: Arg) -> Reply: ...

    async def pipeline(self, commands: Sequence[tuple[Arg, ...]]) -> list[Reply]:
        """Many commands in one round trip; refusals are members of the answer."""
        ...

    def scan(self, pattern: str) -> AsyncIterator[bytes]:
        """All keys that match, on every primary; a key may come twice."""
        ...

    async def aclose(self) -> None: ...


class SyncRedisPort(Protocol):
    """The same door for threads."""

    def execute(self, *args: Arg) -> Reply: ...

    def pipeline(self, commands: Sequence[tuple[Arg, ...]]) -> list[Reply]: ...

    def scan(self, pattern: str) -> Iterator[bytes]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """Where a link connects and who it says it is; a password never shows in a ``repr``."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str | None = None  # a unix socket
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    tls: bool = False
    tls_ca: str | None = None

    @classmethod
    def from_url(cls, url: str) -> RedisTarget:
        """From ``redis://[user:password@]host[:port][/db]``, ``rediss://…`` or ``unix:///path?db=0``."""
        parts = urlsplit(url)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        try:
            database = int(query.get("db") or parts.path.strip("/") or 0)
            port = parts.port or 6379
        except ValueError:
            if parts.scheme != "unix":
                raise ConfigError(
                    "a Redis address has no usable port or database",
                    remedy="write redis://host:6379/0",
                ) from None
            database, port = int(query.get("db", "0")), 0
        if parts.scheme not in ("redis", "rediss", "unix", "valkey", "valkeys"):
            raise ConfigError(
                f"Redis addresses of scheme {parts.scheme!r} are not supported",
                remedy="use redis://, rediss:// or unix://",
            )
        return cls(
            host=parts.hostname or "127.0.0.1",
            port=port,
            path=unquote(parts.path) if parts.scheme == "unix" else None,
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            database=database,
            tls=parts.scheme in ("rediss", "valkeys"),
            tls_ca=query.get("ssl_ca_certs"),
        )

    def tls_context(self) -> ssl.SSLContext | None:
        """A context that verifies the server, where the address asks for encryption."""
        return ssl.create_default_context(cafile=self.tls_ca) if self.tls else None

    def greeting(self) -> list[bytes]:
        """The commands that open a connection, each must be answered without an error."""
        commands: list[tuple[Arg, ...]] = []
        if self.password is not None:
            who = (self.username,) if self.username else ()
            commands.append(("AUTH", *who, self.password))
        if self.database:
            commands.append(("SELECT", self.database))
        commands.append(("PING",))  # refused while the server is still loading its data
        return [encode_command(command) for command in commands]
