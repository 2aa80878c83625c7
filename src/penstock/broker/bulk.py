"""Writing a million messages: bounded memory, every failure reported by name.

A window of writes is kept under way. A write whose answer was lost is repeated only if
the message carries an id, because only then storing it twice is impossible; otherwise
it is reported as `Unknown` and the caller decides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import dataclass, field

from msgspec import Struct

from penstock.broker.errors import LinkBusy, PayloadTooLarge
from penstock.broker.publisher import Publisher, Refused, Stored, Unknown, Written, write_headers

__all__ = ["BulkReport", "Failure", "Outgoing", "publish_many"]

MAX_REPEATS = 5
MAX_KEPT_FAILURES = 1000
TOO_LARGE = 413


class Outgoing(Struct, frozen=True, gc=False):
    """One message to write. ``headers`` are raw lines as of `header_lines`.

    With a ``refusal`` it is not sent, only counted: its maker could not make it.
    """

    subject: bytes
    payload: bytes
    msg_id: str | None = None
    headers: bytes | None = None
    refusal: Refused | None = None


class Failure(Struct, frozen=True):
    """A message that is not known to be stored, with its place in the input."""

    index: int
    message: Outgoing
    result: Refused | Unknown


@dataclass(slots=True)
class BulkReport:
    """How a bulk write ended. The counts are exact; ``failures`` keeps the first thousand."""

    stored: int = 0
    duplicates: int = 0
    refused: int = 0
    unknown: int = 0
    failures: list[Failure] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every message is certainly stored."""
        return not (self.refused or self.unknown)


async def publish_many(
    publisher: Publisher,
    messages: Iterable[Outgoing] | AsyncIterable[Outgoing],
    *,
    window: int = 1024,
    on_failure: Callable[[Failure], None] | None = None,
) -> BulkReport:
    """Write all of ``messages`` in order, at most ``window`` of them under way.

    Memory stays bounded however many there are. Each message that was refused, or whose
    fate is unknown, is given to ``on_failure`` as it becomes known. A window larger than
    the link's own bound is cut to it.
    """
    bulk = _Bulk(publisher, min(window, publisher.link.options.max_in_flight), on_failure)
    try:
        if isinstance(messages, AsyncIterable):
            async for message in messages:
                if not bulk.try_send(message):
                    await bulk.send(message)
        else:
            for message in messages:
                if not bulk.try_send(message):
                    await bulk.send(message)
        await bulk.settle(0)
    finally:
        bulk.abandon()
    return bulk.report


class _Bulk:
    """The window: what is under way, oldest first."""

    def __init__(
        self, publisher: Publisher, window: int, on_failure: Callable[[Failure], None] | None
    ) -> None:
        self.report = BulkReport()
        self._publisher = publisher
        self._link = publisher.link
        self._window = window
        self._on_failure = on_failure
        self._under_way: deque[tuple[int, Outgoing, asyncio.Future[Written]]] = deque()
        self._sent = 0

    def try_send(self, message: Outgoing) -> bool:
        """Send if window and link have room."""
        if len(self._under_way) >= self._window or not self._link.has_room:
            return False
        self._under_way.append((self._sent, message, self._write(message)))
        self._sent += 1
        return True

    async def send(self, message: Outgoing) -> None:
        while not self.try_send(message):
            if len(self._under_way) >= self._window:
                await self.settle(self._window // 2)  # refill by halves: the pipe never runs dry
            else:
                await self._link.room()

    async def settle(self, left: int) -> None:
        """Wait until at most ``left`` writes are under way."""
        while len(self._under_way) > left:
            # Answers come in order: when this one is there, those before it mostly are.
            await asyncio.wait([self._under_way[len(self._under_way) - left - 1][2]])
            while self._under_way and (len(self._under_way) > left or self._under_way[0][2].done()):
                index, message, future = self._under_way.popleft()
                result = future.result() if future.done() else await future
                if type(result) is not Stored:
                    result = await self._certain(message, result)
                self._count(index, message, result)

    def abandon(self) -> None:
        for _index, _message, future in self._under_way:
            future.cancel()

    async def _certain(self, message: Outgoing, result: Written) -> Written:
        """Repeat a write of unknown fate while that cannot store it twice."""
        for _ in range(MAX_REPEATS):
            if not isinstance(result, Unknown) or message.msg_id is None:
                break
            await self._link.room()
            result = await self._write(message)
        return result

    def _write(self, message: Outgoing) -> asyncio.Future[Written]:
        if message.refusal is not None:
            return _settled(message.refusal)
        headers = message.headers
        if message.msg_id is not None:
            headers = write_headers(headers, message.msg_id)
        try:
            return self._publisher.send(message.subject, message.payload, headers=headers)
        except PayloadTooLarge as error:
            return _settled(Refused(TOO_LARGE, 0, error.message))
        except LinkBusy as error:
            return _settled(Unknown(error.message))

    def _count(self, index: int, message: Outgoing, result: Written) -> None:
        report = self.report
        if isinstance(result, Stored):
            report.stored += 1
            report.duplicates += result.duplicate
            return
        if isinstance(result, Refused):
            report.refused += 1
        else:
            report.unknown += 1
        failure = Failure(index, message, result)
        if len(report.failures) < MAX_KEPT_FAILURES:
            report.failures.append(failure)
        if self._on_failure is not None:
            self._on_failure(failure)


def _settled(result: Written) -> asyncio.Future[Written]:
    future: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future
