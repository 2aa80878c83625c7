"""A lean connection to one Redis: pipelined futures over one socket, and nothing more.

Callers that run at once share one write and one read, in the order they called. A broken
connection is mended in the background with growing, jittered pauses; whoever calls
meanwhile waits for it, for at most ``timeout``. What had been sent when it broke raises
`RedisLost`, for nobody can know whether it took effect; nothing is ever sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, cast

from penstock.broker.redis_port import RedisClosed, RedisLost, RedisTarget, RedisUnreachable
from penstock.broker.resp import Arg, Push, RedisRefused, Reply, RespReader, encode_command
from penstock.core.errors import PenstockError, reason_of

__all__ = ["RedisLink", "unheard"]

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 2.0
_SCAN_COUNT: Final = 1000


def unheard(_news: Push | None) -> None:
    """Nobody listens."""


class RedisLink:
    """``RedisLink(url)`` connects at the first command. One link per event loop.

    ``timeout`` bounds the wait for a connection and for an answer; ``None`` for a link that is
    used for blocking commands; ``connect_timeout`` says otherwise for the connection alone.
    ``max_in_flight`` bounds commands without an answer: more wait. ``greeting`` is said at the
    start of every connection; ``told`` hears what Redis tells unasked, and ``None`` when a
    connection is gone.
    """

    def __init__(
        self,
        url: str | RedisTarget,
        *,
        timeout: float | None = 10.0,
        connect_timeout: float | None = None,
        max_in_flight: int = 4096,
        greeting: Sequence[tuple[Arg, ...]] = (),
        told: Callable[[Push | None], None] = unheard,
    ) -> None:
        self._target = RedisTarget.from_url(url) if isinstance(url, str) else url
        self._timeout = timeout
        self._connect_timeout = timeout if connect_timeout is None else connect_timeout
        self._max_in_flight = max_in_flight
        self._greeting = [encode_command(command) for command in greeting]
        self._told = told
        self._wire: _Wire | None = None
        self._mending: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._closed = False
        self.reconnects = 0

    async def execute(self, *args: Arg) -> Reply:
        """The answer to one command. Raises `RedisRefused`, `RedisLost` or `RedisUnreachable`."""
        reply = await self._send(encode_command(args))
        if isinstance(reply, RedisRefused):
            raise reply
        return reply

    async def pipeline(self, commands: Sequence[tuple[Arg, ...]]) -> list[Reply]:
        """The answers to many commands sent at once; refusals are members of the list."""
        waiting = []
        for command in commands:
            wire = self._wire
            if wire is None or len(wire.pending) >= self._max_in_flight:
                wire = await self._roomy_wire()
            waiting.append(wire.send(encode_command(command)))
        try:
            return [await future for future in waiting]
        except BaseException:
            for future in waiting:  # one broken connection fails them all: hear each of them
                if future.done() and not future.cancelled():
                    future.exception()
                else:
                    future.cancel()
            raise

    async def scan(self, pattern: str) -> AsyncIterator[bytes]:
        """All keys that match; a key may come twice."""
        cursor: Any = b"0"
        keys: Any
        while True:
            page: Any = await self.execute("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT)
            cursor, keys = page
            for key in keys:
                yield key
            if cursor == b"0":
                return

    @property
    def idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return self._wire is None or not self._wire.pending

    async def aclose(self) -> None:
        """Close the connection; commands without an answer raise `RedisClosed`."""
        self._closed = True
        mending, self._mending = self._mending, None
        if mending is not None:
            mending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await mending
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.aclose(RedisClosed("the Redis link was closed"))

    # -- sending ------------------------------------------------------------------------

    async def _send(self, command: bytes) -> Reply:
        wire = self._wire
        if wire is None or len(wire.pending) >= self._max_in_flight:
            wire = await self._roomy_wire()
        return await wire.send(command)

    async def _roomy_wire(self) -> _Wire:
        """The open connection, once it has room for one more command."""
        while True:
            wire = self._wire or await self._connected()
            if len(wire.pending) < self._max_in_flight:
                return wire
            await wire.room()

    async def _connected(self) -> _Wire:
        if self._closed:
            raise RedisClosed("the Redis link was closed")
        if self._mending is None:
            self._mending = asyncio.create_task(self._mend(), name="redis-link:connect")
        done, _ = await asyncio.wait({self._mending}, timeout=self._connect_timeout)
        if self._wire is not None:
            return self._wire
        if done and self._failure is not None and not self._closed:
            raise self._failure
        if self._closed:
            raise RedisClosed("the Redis link was closed")
        raise RedisUnreachable(
            f"no Redis answered at {_named(self._target)} within {self._connect_timeout} s: "
            f"{'no reason is known' if self._failure is None else reason_of(self._failure)}"
        ) from self._failure

    # -- mending ------------------------------------------------------------------------

    async def _mend(self) -> None:
        """Connect, however often it takes; end early only when trying again cannot help."""
        pause = _FIRST_PAUSE
        self._failure = None
        try:
            while True:
                try:
                    self._wire = await self._open()
                    return
                except (OSError, RedisLost, TimeoutError) as error:
                    self._failure = error
                except RedisRefused as error:
                    self._failure = error
                    if error.kind not in ("LOADING", "MASTERDOWN", "BUSY"):
                        return
                except PenstockError as error:
                    self._failure = error
                    return
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            self._mending = None

    async def _open(self) -> _Wire:
        loop = asyncio.get_running_loop()
        target = self._target
        wire = _Wire(self._timeout, self._lost, self._told)
        async with asyncio.timeout(self._connect_timeout or 10.0):
            if target.path is not None:
                await loop.create_unix_connection(lambda: wire, target.path)
            else:
                await loop.create_connection(
                    lambda: wire, target.host, target.port, ssl=target.tls_context()
                )
            replies = [wire.send(command) for command in (*target.greeting(), *self._greeting)]
            try:
                for future in replies:
                    reply = await future
                    if isinstance(reply, RedisRefused):
                        raise reply
            except BaseException:
                await wire.aclose(RedisLost("the greeting failed"))
                raise
        if wire.gone:  # it ended between its last answer and now, when nobody was told
            raise RedisLost("the connection to Redis broke after the greeting")
        return wire

    def _lost(self, wire: _Wire) -> None:
        """The connection is gone: the next caller waits for a new one, which starts now."""
        if self._wire is not wire or self._closed:
            return
        self._wire = None
        self._told(None)
        self.reconnects += 1
        if self._mending is None:
            self._mending = asyncio.get_running_loop().create_task(
                self._mend(), name="redis-link:reconnect"
            )


class _Wire(asyncio.Protocol):
    """One connection: writes are gathered per turn of the loop, answers matched in order."""

    def __init__(
        self,
        timeout: float | None,
        lost: Callable[[_Wire], None],
        told: Callable[[Push | None], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._on_lost = lost
        self._told = told
        self._reader = RespReader()
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytes] = []
        self._writable = True
        self.gone = False
        self._cause: PenstockError | None = None
        self._roomless: list[asyncio.Future[None]] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._answered = 0
        self.pending: deque[asyncio.Future[Reply]] = deque()

    def send(self, command: bytes) -> asyncio.Future[Reply]:
        """Queue one command; the future is its answer (a refusal is a value)."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        if self.gone:
            future.set_exception(RedisLost("the connection to Redis broke"))
            return future
        self.pending.append(future)
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(command)
        return future

    async def room(self) -> None:
        """Wait until some answers have come in."""
        waiter = self._loop.create_future()
        self._roomless.append(waiter)
        await waiter

    async def aclose(self, cause: PenstockError) -> None:
        self._cause = cause
        if self._transport is not None:
            self._flush()
            self._transport.abort()
        self._end(cause)
        await asyncio.sleep(0)

    def _flush(self) -> None:
        if self._outgoing and self._writable and self._transport is not None and not self.gone:
            batch, self._outgoing = self._outgoing, []
            self._transport.write(batch[0] if len(batch) == 1 else b"".join(batch))

    # -- what the transport tells us ----------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by shape only
        if self._timeout is not None:
            self._sweep = self._loop.call_later(self._timeout / 2, self._look_for_silence, -1, 0)

    def data_received(self, data: bytes) -> None:
        try:
            replies = self._reader.feed(data)
        except (PenstockError, ValueError) as error:
            self._fail(RedisLost(f"Redis sent what is not RESP: {error}"))
            return
        pending = self.pending
        stale = False
        self._answered += len(replies)
        for reply in replies:
            if type(reply) is Push:
                self._told(reply)
                continue
            if not pending:
                self._fail(RedisLost("Redis answered more than it was asked"))
                return
            future = pending.popleft()
            if not future.done():
                future.set_result(reply)
            if type(reply) is RedisRefused and reply.kind == "READONLY":
                stale = True
        if self._roomless:
            waiting, self._roomless = self._roomless, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)
        if stale:  # a primary no more: whoever the name stands for now is asked next
            self._fail(RedisLost("the server has become a replica"))

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(self._cause or RedisLost(f"the connection to Redis broke: {error or 'closed'}"))
        self._on_lost(self)

    # -- ends ---------------------------------------------------------------------------

    def _look_for_silence(self, seen: int, quiet: int) -> None:
        """One sweep for all deadlines: answers come in order, so silence hits the oldest first."""
        assert self._timeout is not None
        quiet = quiet + 1 if self.pending and seen == self._answered else 0
        if quiet >= 2:
            self._fail(RedisLost(f"Redis did not answer within {self._timeout:g} s"))
            return
        self._sweep = self._loop.call_later(
            self._timeout / 2, self._look_for_silence, self._answered, quiet
        )

    def _fail(self, cause: RedisLost) -> None:
        self._cause = cause
        if self._transport is not None:
            self._transport.abort()
        self._end(cause)
        self._on_lost(self)  # at once: the next command must not find this connection

    def _end(self, cause: PenstockError) -> None:
        self.gone = True
        if self._sweep is not None:
            self._sweep.cancel()
        failed, self.pending = self.pending, deque()
        for future in failed:
            if not future.done():
                future.set_exception(type(cause)(cause.message))
        waiting, self._roomless = self._roomless, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


def _named(target: RedisTarget) -> str:
    return target.path or f"{target.host}:{target.port}"
