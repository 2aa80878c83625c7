"""The lean connection for threads: a blocking socket per thread at work, kept for the next.

One command costs one send and one receive. A connection that broke while it lay unused is
replaced without a word; one that breaks under a command raises `RedisLost`, because nobody
can know whether the command took effect.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from penstock.broker.redis_port import RedisClosed, RedisLost, RedisTarget, RedisUnreachable
from penstock.broker.resp import Arg, RedisRefused, Reply, RespReader, encode_command
from penstock.core.errors import reason_of

__all__ = ["SyncRedisLink"]

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
_SCAN_COUNT: Final = 1000


class SyncRedisLink:
    """``SyncRedisLink(url)`` connects at the first command; any thread may use it.

    ``timeout`` bounds the wait for a connection (tried again with growing, jittered pauses)
    and the wait for an answer; ``connect_timeout`` says otherwise for the connection alone.
    """

    def __init__(
        self,
        url: str | RedisTarget,
        *,
        timeout: float | None = 10.0,
        connect_timeout: float | None = None,
        max_idle: int = 16,
    ) -> None:
        self._target = RedisTarget.from_url(url) if isinstance(url, str) else url
        self._timeout = timeout
        self._connect_timeout = timeout if connect_timeout is None else connect_timeout
        self._idle: deque[_Line] = deque(maxlen=max_idle)
        self._guard = threading.Lock()
        self._closed = False

    def execute(self, *args: Arg) -> Reply:
        """The answer to one command. Raises `RedisRefused`, `RedisLost` or `RedisUnreachable`."""
        reply = self._ask(encode_command(args), 1)[0]
        if isinstance(reply, RedisRefused):
            raise reply
        return reply

    def pipeline(self, commands: Sequence[tuple[Arg, ...]]) -> list[Reply]:
        """The answers to many commands in one round trip; refusals are members of the list."""
        if not commands:
            return []
        return self._ask(b"".join(map(encode_command, commands)), len(commands))

    def scan(self, pattern: str) -> Iterator[bytes]:
        """All keys that match; a key may come twice."""
        cursor: Any = b"0"
        while True:
            page: Any = self.execute("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT)
            cursor = page[0]
            yield from page[1]
            if cursor == b"0":
                return

    def close(self) -> None:
        """Close the idle connections; those at work close when their command ends."""
        with self._guard:
            self._closed = True
            idle, self._idle = list(self._idle), deque(maxlen=self._idle.maxlen)
        for line in idle:
            line.close()

    def _ask(self, data: bytes, answers: int) -> list[Reply]:
        line = self._borrow()
        try:
            replies = line.ask(data, answers)
        except BaseException:  # also Ctrl-C: an unread answer must never meet the next command
            line.close()
            raise
        self._give_back(line)
        return replies

    def _borrow(self) -> _Line:
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                break
            if line.fresh():
                return line
            line.close()
        if self._closed:
            raise RedisClosed("the Redis link was closed")
        return self._connected()

    def _give_back(self, line: _Line) -> None:
        with self._guard:
            if not self._closed and len(self._idle) < (self._idle.maxlen or 0):
                self._idle.append(line)
                return
        line.close()

    def _connected(self) -> _Line:
        deadline = time.monotonic() + (self._connect_timeout or 10.0)
        pause = _FIRST_PAUSE
        while True:
            try:
                return _Line(self._target, self._timeout, self._connect_timeout)
            except RedisRefused as error:
                if error.kind not in ("LOADING", "MASTERDOWN", "BUSY"):
                    raise
                failure: Exception = error
            except (OSError, RedisLost) as error:
                failure = error
            if time.monotonic() + pause > deadline:
                raise RedisUnreachable(
                    f"no Redis answered at {self._target.path or self._target.host}"
                    f" port {self._target.port} within {self._connect_timeout} s:"
                    f" {reason_of(failure)}"
                ) from failure
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)


class _Line:
    """One greeted connection."""

    def __init__(
        self, target: RedisTarget, timeout: float | None, connect_timeout: float | None
    ) -> None:
        self._timeout = timeout
        self._reader = RespReader()
        self._socket = _open(target, connect_timeout)
        try:
            greeting = target.greeting()
            for reply in self.ask(b"".join(greeting), len(greeting)):
                if isinstance(reply, RedisRefused):
                    raise reply
            self._socket.settimeout(timeout)
        except BaseException:
            self.close()
            raise

    def ask(self, data: bytes, answers: int) -> list[Reply]:
        try:
            self._socket.sendall(data)
            replies = self._reader.feed(self._receive())
            while len(replies) < answers:
                replies += self._reader.feed(self._receive())
        except TimeoutError as error:
            raise RedisLost(f"Redis did not answer within {self._timeout} s") from error
        except (OSError, ValueError) as error:
            raise RedisLost(f"the connection to Redis broke: {error}") from error
        if len(replies) != answers:
            raise RedisLost("Redis answered more than it was asked")
        return replies

    def fresh(self) -> bool:
        """Whether the other end is still there: silence is good, anything to read is its end."""
        try:
            return not select.select((self._socket,), (), (), 0)[0]
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _receive(self) -> bytes:
        data = self._socket.recv(262144)
        if not data:
            raise RedisLost("the connection to Redis broke: it was closed")
        return data


def _open(target: RedisTarget, timeout: float | None) -> socket.socket:
    if target.path is not None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        connection.connect(target.path)
        return connection
    connection = socket.create_connection((target.host, target.port), timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    context = target.tls_context()
    return context.wrap_socket(connection, server_hostname=target.host) if context else connection
