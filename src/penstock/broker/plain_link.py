"""The plain link: the same promises on nats-py's public interface alone.

The way back when a nats-py of tomorrow no longer has the private parts that
`penstock.broker.fast_link` rides on. About three times the CPU per message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

from nats import errors as nats_errors

from penstock.broker.errors import LinkClosed
from penstock.broker.frames import Handler, parse_headers
from penstock.broker.link import Link, Subscription
from penstock.broker.options import NatsOptions

__all__ = ["PlainLink"]

MAX_AHEAD = 1 << 20  # bytes handed to nats-py before the server confirms
PACE_SECONDS = 0.5  # a confirmation asked for on a lost connection never comes: ask again


class _Outgoing(NamedTuple):
    subject: bytes
    reply: bytes
    headers: bytes | None
    payload: bytes

    @property
    def size(self) -> int:
        return len(self.subject) + len(self.reply) + len(self.headers or b"") + len(self.payload)


class PlainLink(Link):
    """A link that owns one writer task and lets nats-py do the rest; see `Link`."""

    def __init__(self, options: NatsOptions) -> None:
        super().__init__(options)
        self._outbox: deque[_Outgoing] = deque()
        self._outbox_bytes = 0
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._writer: asyncio.Task[None] | None = None
        self._messages_in = 0
        self._bytes_in = 0

    def _send(self, subject: bytes, reply: bytes, headers: bytes | None, payload: bytes) -> None:
        outgoing = _Outgoing(subject, reply, headers, payload)
        self._outbox.append(outgoing)
        self._outbox_bytes += outgoing.size
        self.messages_out += 1
        self.bytes_out += outgoing.size
        self._idle.clear()
        self._work.set()
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(
                self._write(), name=f"link-writer:{self.options.name}"
            )

    async def _listen(self, subject: str, handler: Handler, queue: str) -> Subscription:
        async def receive(message: Any) -> None:
            self._messages_in += 1
            self._bytes_in += len(message.data)
            reply = message.reply.encode() or None
            handler(message.subject.encode(), reply, _raw(message.headers), message.data)

        inner = await self.client.subscribe(subject, queue=queue, cb=receive)
        return Subscription(subject, inner, _nothing)

    async def _written(self) -> None:
        await self._idle.wait()
        # nats-py's flush sends its PING ahead of what it still holds, so the first one only
        # gives it the time to write that, and the caller's own flush then speaks the truth.
        await self.client.confirm(self._timeout)

    def _pending_bytes(self) -> int:
        return self._outbox_bytes + int(self.client.pending_data_size)

    def _received(self) -> tuple[int, int]:
        return self._messages_in, self._bytes_in

    async def _hang_up(self) -> None:
        await super()._hang_up()
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])

    def _end(self, error: LinkClosed) -> None:
        super()._end(error)
        self._outbox.clear()
        self._outbox_bytes = 0
        self._idle.set()

    async def _write(self) -> None:
        while True:
            await self._work.wait()
            while self._outbox:
                await self._up.wait()  # while disconnected the bound is our own outbox
                outgoing = self._outbox.popleft()
                self._outbox_bytes -= outgoing.size
                await self._publish(outgoing)
                await self._keep_pace()
                self._requests.wake()
            self._work.clear()
            self._idle.set()
            self._requests.wake()

    async def _keep_pace(self) -> None:
        """nats-py takes whatever it is given: wait for the server before it holds too much."""
        while self.is_connected and self.client.pending_data_size > min(MAX_AHEAD, self._mark // 2):
            with suppress(nats_errors.Error, OSError):
                await self.client.confirm(PACE_SECONDS)

    async def _publish(self, outgoing: _Outgoing) -> None:
        fields = None
        if outgoing.headers is not None:
            fields = parse_headers(b"NATS/1.0\r\n" + outgoing.headers)
        try:
            await self.client.publish(
                outgoing.subject.decode(), outgoing.payload, outgoing.reply.decode(), fields
            )
        except nats_errors.Error as error:
            self._fault(error)


def _raw(fields: dict[str, str] | None) -> bytes | None:
    """The header block as the server sent it, near enough: nats-py hides the status line in it."""
    if not fields:
        return None
    named = {str(getattr(name, "value", name)): value for name, value in fields.items()}
    status, text = named.pop("Status", ""), named.pop("Description", "")
    first = f"NATS/1.0 {status} {text.splitlines()[0] if text.strip() else ''}".strip()
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"{first if status else 'NATS/1.0'}\r\n{lines}\r\n".encode()


def _nothing() -> None:
    return None
