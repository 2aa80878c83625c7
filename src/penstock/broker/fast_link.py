"""The fast link: our parser and our sending on top of nats-py's connection.

nats-py spends most of its time per message on regular expressions, queue hops and task
wake-ups. Here frames are appended to its list of pending commands, which goes to the socket
at the end of each turn of the event loop, and what arrives goes from the socket through our
parser straight to its handler (`penstock.broker.tap`). Everything rare (connecting, PING,
INFO, errors, replaying subscriptions, waiting for a socket that is full) stays with nats-py.

This rides on the private names in `missing_names`; nats-py is pinned exactly, and a test
fails by name when one of them moves.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader
from collections.abc import Callable
from typing import Any

from nats import errors as nats_errors
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.protocol.parser import Parser

from penstock.broker.dial import GuardedClient
from penstock.broker.frames import FrameError, Handler, Splitter, publish_frame
from penstock.broker.link import Link, Subscription
from penstock.broker.options import NatsOptions
from penstock.broker.tap import Tap

__all__ = ["PRIVATE_NAMES", "FastLink", "missing_names"]

PRIVATE_NAMES = (
    "_flush_queue",
    "_pending",
    "_pending_data_size",
    "_process_err",
    "_process_info",
    "_process_msg",
    "_process_op_err",
    "_ps",
    "_sid",
    "_transport",
)
LARGE_BYTES = 32 * 1024  # from here on a payload is not copied into its frame
AHEAD_BYTES = 64 * 1024  # so much may wait in the socket's own buffer before we wait for it


def missing_names() -> list[str]:
    """The private names this module needs and the installed nats-py lacks."""
    client = Client()
    missing = [name for name in PRIVATE_NAMES if not hasattr(client, name)]
    if not isinstance(getattr(client, "_pending", None), list):
        missing.append("_pending as a list")
    streams = ("_io_reader", "_io_writer")
    transport = TcpTransport()  # type: ignore[no-untyped-call]
    missing += [f"TcpTransport.{name}" for name in streams if not hasattr(transport, name)]
    if "_buffer" not in StreamReader.__init__.__code__.co_names:
        missing.append("asyncio's StreamReader._buffer")
    return missing + [f"Parser.{name}" for name in ("parse", "reset") if not hasattr(Parser, name)]


class FastLink(Link):
    """A link whose every message costs a few microseconds; see `Link` for its promises."""

    def __init__(self, options: NatsOptions) -> None:
        super().__init__(options)
        self._splitter = Splitter(on_fault=self._fault)
        self._kick: Any = _Kick(self._flushed)
        self._call_soon = asyncio.get_running_loop().call_soon
        self._parser = self.client._ps = _FastParser(self.client, self._splitter)

    def _send(self, subject: bytes, reply: bytes, headers: bytes | None, payload: bytes) -> None:
        client = self.client
        pending = client._pending
        if not pending:  # whoever puts the first frame has all of this turn of the loop sent
            self._call_soon(self._flush)
        if len(payload) < LARGE_BYTES:
            frame = publish_frame(subject, reply, headers, payload)
            pending.append(frame)
            size = len(frame)
        else:
            parts = _large_frame(subject, reply, headers, payload)
            pending += parts
            size = sum(map(len, parts))
        client._pending_data_size += size
        self.messages_out += 1
        self.bytes_out += size

    def _flush(self) -> None:
        """Hand what is pending to the socket: at once while it takes it, else by nats-py's
        flusher, which waits until it does (or for a new connection)."""
        client = self.client
        writer = getattr(client._transport, "_io_writer", None)
        if (
            writer is None
            or not self.is_connected
            or writer.transport.get_write_buffer_size() > AHEAD_BYTES
        ):
            self._flush_queue().put_nowait(self._kick)
        elif client._pending:
            writer.writelines(client._pending)
            client._pending = []
            client._pending_data_size = 0
            self._flushed()

    async def _came_up(self) -> None:
        self._open_tap()
        await super()._came_up()

    async def _start(self) -> None:
        await super()._start()
        self._open_tap()

    def _open_tap(self) -> None:
        connection: Any = self.client._transport
        transport = connection._io_writer.transport
        tap = Tap(connection._io_reader, transport.get_protocol(), self._splitter)
        transport.set_protocol(tap)
        self._parser.tap = tap

    async def _listen(self, subject: str, handler: Handler, queue: str) -> Subscription:
        # nats-py numbers the subscription before its first wait, so the handler can be in
        # place before the server hears of it and no message takes the slow way.
        sid = b"%d" % (self.client._sid + 1)
        self._splitter.handlers[sid] = handler
        try:
            inner = await self.client.subscribe(subject, queue=queue)
        except BaseException:
            del self._splitter.handlers[sid]
            raise
        return Subscription(subject, inner, lambda: self._forget_handler(sid))

    async def _written(self) -> None:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._flush_queue().put(written)
        await written

    @property
    def has_room(self) -> bool:
        requests = self._requests
        pending_bytes: int = self.client._pending_data_size
        return len(requests.waiting) < requests.max_in_flight and pending_bytes < self._mark

    def _pending_bytes(self) -> int:
        size: int = self.client._pending_data_size
        return size

    def _received(self) -> tuple[int, int]:
        return self._splitter.messages_in, self._splitter.bytes_in

    def _flush_queue(self) -> asyncio.Queue[asyncio.Future[Any]]:
        queue = self.client._flush_queue
        assert queue is not None, "a link is connected before it is used"
        return queue

    def _forget_handler(self, sid: bytes) -> None:
        self._splitter.handlers.pop(sid, None)

    def _flushed(self) -> None:
        self._requests.wake()


class _Kick:
    """Put in nats-py's flush queue as if it were a future: wakes the flusher, and hears when
    the bytes are gone."""

    def __init__(self, flushed: Callable[[], None]) -> None:
        self._flushed = flushed

    def done(self) -> bool:
        self._flushed()
        return True


class _FastParser(Parser):
    """Stands in for nats-py's parser and leaves it only what has no handler of ours."""

    def __init__(self, client: GuardedClient, splitter: Splitter) -> None:
        self.tap: Tap | None = None
        self._splitter = splitter
        super().__init__(client)

    def reset(self) -> None:
        super().reset()
        if self.tap is not None:
            self.tap.shut()
            self.tap = None
        self._splitter.reset()

    async def parse(self, data: bytes = b"") -> None:
        if self.tap is not None and self.tap.opened:
            await super().parse(data)
            return
        try:
            rest = self._splitter.feed(data)
        except FrameError as error:
            raise nats_errors.ProtocolError(str(error)) from error
        for frame in rest:
            if not isinstance(frame, bytes):
                sid, subject, reply, headers, payload = frame
                await self.nc._process_msg(int(sid), subject, reply or b"", payload, headers)
            else:
                await super().parse(frame)


def _large_frame(
    subject: bytes, reply: bytes, headers: bytes | None, payload: bytes
) -> tuple[bytes, bytes, bytes]:
    if headers is None:
        return b"PUB %b %b %d\r\n" % (subject, reply, len(payload)), payload, b"\r\n"
    block = b"NATS/1.0\r\n%b\r\n" % headers
    sizes = (len(block), len(block) + len(payload))
    return b"HPUB %b %b %d %d\r\n%b" % (subject, reply, *sizes, block), payload, b"\r\n"
