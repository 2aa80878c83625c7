"""The link: one connection to NATS, fast enough that the server is the limit.

Publishing and asking never wait: they append bytes and return. What bounds them is
`Link.room`, which waits while too much is under way, and `LinkBusy`, which refuses what
went past it. Messages are handed to plain functions straight from the parser.

A link reconnects for ever and replays its subscriptions. What was being asked when the
connection broke ends as `RequestTimeout`: whether it took effect is unknown, and only
the caller can know whether to read back or to repeat. A link belongs to the event loop
that opened it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nats import errors as nats_errors

from penstock.broker import dial
from penstock.broker.errors import (
    BadSubject,
    LinkBusy,
    LinkClosed,
    LinkError,
    NoResponders,
    PayloadTooLarge,
    RequestTimeout,
)
from penstock.broker.frames import (
    HEADER_OVERHEAD,
    Handler,
    header_lines,
    parse_headers,
    status_of,
)
from penstock.broker.options import NatsOptions
from penstock.broker.requests import Reply, Requests, Settle, settle_reply

__all__ = [
    "Handler",
    "Link",
    "LinkBusy",
    "LinkClosed",
    "LinkError",
    "LinkStats",
    "NatsOptions",
    "NoResponders",
    "Reply",
    "RequestTimeout",
    "Subscription",
    "header_lines",
    "parse_headers",
    "status_of",
]

log = logging.getLogger(__name__)

CLOSE_GRACE = 5.0  # seconds a closing link waits for the server before it lets go


@dataclass(frozen=True, slots=True)
class LinkStats:
    """What went through a link since it was opened."""

    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int
    in_flight: int
    pending_bytes: int
    reconnects: int


class Subscription:
    """Interest in a subject, until `unsubscribe` or `drain`; both safe to repeat."""

    def __init__(self, subject: str, inner: Any, forget: Callable[[], None]) -> None:
        self.subject = subject
        self._inner = inner
        self._forget = forget
        self._ended = False

    async def unsubscribe(self) -> None:
        """End at once; messages under way are dropped."""
        await self._end(self._inner.unsubscribe)

    async def drain(self) -> None:
        """End after everything the server had sent has reached the handler."""
        await self._end(self._inner.drain)

    async def _end(self, farewell: Callable[[], Awaitable[None]]) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            with suppress(nats_errors.Error):  # closed meanwhile: then it has ended all the same
                await farewell()
        finally:
            self._forget()


class Link(ABC):
    """A connection to NATS. Made by `Link.open`; safe to share within one event loop."""

    def __init__(self, options: NatsOptions) -> None:
        self.options = options
        self.client = dial.GuardedClient()
        self.messages_out = 0
        self.bytes_out = 0
        self._requests: Requests
        self._max_payload = 0
        self._closed_by: LinkClosed | None = None
        self._up = asyncio.Event()
        self._timeout = options.request_timeout.total_seconds()
        self._mark = options.max_pending_bytes
        self._disconnect: list[Callable[[], None]] = []
        self._reconnect: list[Callable[[], None]] = []
        self._error: list[Callable[[Exception], None]] = []

    @classmethod
    async def open(cls, options: NatsOptions) -> Link:
        """Connect, or say why not: `Unreachable`, `AuthFailed`, `TlsFailed`.

        Rides on nats-py's private parts where they are as we know them, and on its
        public face alone otherwise or with ``PENSTOCK_PLAIN_LINK=1``: slower, the same
        promises.
        """
        link = _kind()(options)
        await link._start()
        return link

    async def close(self, *, drain: bool = True) -> None:
        """Send what is pending, then disconnect. Open requests end as `LinkClosed`.

        Without ``drain``, what is pending may be lost. Bounded even when the server is
        frozen, and safe to repeat.
        """
        if self._closed_by is not None:
            return
        if drain and self.is_connected:
            with suppress(LinkError):
                await self.flush(CLOSE_GRACE)
        self._end(LinkClosed("the link was closed"))
        await self._hang_up()

    @property
    def is_connected(self) -> bool:
        return self._up.is_set() and bool(self.client.is_connected)

    @property
    def closed(self) -> bool:
        return self._closed_by is not None

    @property
    def max_payload(self) -> int:
        """Bytes of headers and payload together that the server takes in one message."""
        return self._max_payload

    @property
    def in_flight(self) -> int:
        return len(self._requests.waiting)

    @property
    def has_room(self) -> bool:
        """Whether `room` would return at once."""
        requests = self._requests
        return len(requests.waiting) < requests.max_in_flight and self._pending_bytes() < self._mark

    @property
    def stats(self) -> LinkStats:
        messages_in, bytes_in = self._received()
        return LinkStats(
            messages_in,
            bytes_in,
            self.messages_out,
            self.bytes_out,
            self.in_flight,
            self._pending_bytes(),
            int(self.client.stats["reconnects"]),
        )

    def publish(
        self,
        subject: bytes,
        payload: bytes = b"",
        *,
        reply: bytes = b"",
        headers: bytes | None = None,
    ) -> None:
        """Send without waiting and without an answer. ``headers`` come from `header_lines`.

        While disconnected it is kept and sent after the reconnect. Raises `LinkBusy`
        when far too much is pending, `PayloadTooLarge`, `BadSubject`, `LinkClosed`;
        then nothing was sent.
        """
        self._admit(subject, headers, payload)
        if reply and reply.split() != [reply]:
            raise BadSubject(f"{reply!r} cannot be a reply subject")
        self._send(subject, reply, headers, payload)

    def request(
        self,
        subject: bytes,
        payload: bytes = b"",
        *,
        headers: bytes | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[Reply]:
        """Ask, and get the future of the one answer.

        It fails with `RequestTimeout`, `NoResponders` or `LinkClosed`. Raises as
        `publish` does, and `LinkBusy` at ``max_in_flight``.
        """
        return self.ask(subject, payload, headers, timeout, settle_reply)

    def ask(
        self,
        subject: bytes,
        payload: bytes,
        headers: bytes | None,
        timeout: float | None,
        settle: Settle,
    ) -> asyncio.Future[Any]:
        """As `request`, but ``settle`` decides what the future's result is made of."""
        self._admit(subject, headers, payload)
        seconds = self._timeout if timeout is None else timeout
        reply, future = self._requests.add(subject, seconds, settle)
        self._send(subject, reply, headers, payload)
        return future

    def answer(self, reply: bytes, payload: bytes) -> bool:
        """Send a few bytes to a reply subject that came with a message; never refused for room.

        Answers are bounded by the messages they answer, and free what the server holds.
        ``False``, with nothing sent, once the link is closed.
        """
        if self._closed_by is not None:
            return False
        self._send(reply, b"", None, payload)
        return True

    async def room(self) -> None:
        """Return at once while there is room for more, else wait until there is."""
        while self._closed_by is None and not self.has_room:
            await self._requests.changed()
        if self._closed_by is not None:
            raise self._closed_by
        self._requests.wake()

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> Subscription:
        """Have ``handler`` called for every message, across reconnects too.

        With ``queue``, members of that group share the messages. The server knows of the
        subscription when a `flush` after it returns.
        """
        if self._closed_by is not None:
            raise self._closed_by
        if subject.split() != [subject] or queue.split() != ([queue] if queue else []):
            raise BadSubject(f"{subject!r} with queue {queue!r} cannot be subscribed")
        return await self._listen(subject, handler, queue)

    async def flush(self, timeout: float | None = None) -> None:
        """Return once the server has processed everything sent so far.

        Waits for a reconnect if need be; raises `RequestTimeout` when that takes too long.
        """
        if self._closed_by is not None:
            raise self._closed_by
        seconds = self._timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                await self._up.wait()
                await self._written()
                await self.client.confirm(seconds)
        except nats_errors.ConnectionClosedError:
            raise LinkClosed("the link was closed") from None
        except (TimeoutError, nats_errors.Error, OSError) as error:
            raise RequestTimeout(f"the server confirmed nothing for {seconds:g} s") from error

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after each reconnect, subscriptions already replayed."""
        self._reconnect.append(callback)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` each time the connection is lost or closed."""
        self._disconnect.append(callback)

    def on_error(self, callback: Callable[[Exception], None]) -> None:
        """Call ``callback`` with faults that no caller waits for, such as a denied permission."""
        self._error.append(callback)

    def forget(self, callback: Callable[..., None]) -> None:
        """Stop calling ``callback`` for any of these events."""
        for listeners in (self._reconnect, self._disconnect, self._error):
            while callback in listeners:
                listeners.remove(callback)

    # What the two kinds of link do differently.

    @abstractmethod
    def _send(
        self, subject: bytes, reply: bytes, headers: bytes | None, payload: bytes
    ) -> None: ...

    @abstractmethod
    async def _listen(self, subject: str, handler: Handler, queue: str) -> Subscription: ...

    @abstractmethod
    async def _written(self) -> None:
        """Wait until everything pending has been handed to the socket."""

    @abstractmethod
    def _pending_bytes(self) -> int: ...

    @abstractmethod
    def _received(self) -> tuple[int, int]:
        """Messages and bytes received."""

    # What they share.

    async def _start(self) -> None:
        observer = dial.Observer(self._went_down, self._came_up, self._was_closed, self._failed)
        await dial.connect(self.client, self.options, observer)
        prefix = f"{self.client.new_inbox()}."
        self._requests = Requests(prefix.encode(), self.options.max_in_flight)
        self._max_payload = int(self.client.max_payload)
        self._up.set()
        await self._listen(f"{prefix}*", self._requests.answered, "")
        await self.flush(self.options.connect_timeout.total_seconds())

    def _admit(self, subject: bytes, headers: bytes | None, payload: bytes) -> None:
        size = len(payload) if headers is None else len(payload) + len(headers) + HEADER_OVERHEAD
        if size > self._max_payload:
            raise PayloadTooLarge(
                f"a message of {size} bytes to {subject.decode(errors='replace')!r} exceeds "
                f"the server's max_payload of {self._max_payload}"
            )
        if subject.split() != [subject]:  # cheap: for a good subject split copies nothing
            raise BadSubject(f"{subject!r} cannot be a subject")
        if self._closed_by is not None:
            raise self._closed_by
        if self._pending_bytes() > 2 * self._mark:
            raise LinkBusy(f"{self._pending_bytes()} bytes wait to be sent")

    def _end(self, error: LinkClosed) -> None:
        self._closed_by = error
        self._up.clear()
        if hasattr(self, "_requests"):
            self._requests.fail_all(error)

    async def _hang_up(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_GRACE):
                await self.client.close()
        except (TimeoutError, OSError, RuntimeError):  # the last: uvloop of a closed transport
            self.client.abort()

    async def _went_down(self) -> None:
        self._up.clear()
        self._tell(self._disconnect)

    async def _came_up(self) -> None:
        self._max_payload = int(self.client.max_payload)
        self._up.set()
        self._requests.wake()
        self._tell(self._reconnect)

    async def _was_closed(self) -> None:
        if self._closed_by is None:
            last = self.client.last_error
            why = f": {last}" if last is not None else ""
            self._end(LinkClosed(f"the NATS server closed the connection for good{why}"))

    async def _failed(self, error: Exception) -> None:
        self._fault(error)

    def _fault(self, error: Exception) -> None:
        log.debug("link %s: %s", self.options.name, error)
        self._tell(self._error, error)

    def _tell(self, listeners: list[Callable[..., None]], *facts: Any) -> None:
        for listener in list(listeners):
            try:
                listener(*facts)
            except Exception:
                log.exception("a listener of link %s failed", self.options.name)


def _kind() -> type[Link]:
    from penstock.broker.fast_link import FastLink, missing_names
    from penstock.broker.plain_link import PlainLink

    if os.environ.get("PENSTOCK_PLAIN_LINK") == "1":
        return PlainLink
    missing = missing_names()
    if missing:
        log.warning("nats-py lacks %s: using its public interface only", ", ".join(missing))
        return PlainLink
    return FastLink
