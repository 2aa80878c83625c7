"""The tap: received bytes go from the socket to the parser at once, and only the rest to nats-py.

asyncio would put them into a stream's buffer and wake nats-py's read loop to fetch them from
there: two turns of the event loop before a waiting caller hears its answer. The tap stands
before the stream. What has a handler is handled there and then; control lines and messages
of nats-py's own go on into the stream, so that its read loop still sees them, and the end of
the connection, as ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from nats import errors as nats_errors

from penstock.broker.frames import FrameError, Incoming, Splitter

__all__ = ["Tap"]


class Tap(asyncio.Protocol):
    """Stands before the protocol of one connection's stream, from when that stream is empty.

    ``opened`` from then on: what arrives in the stream has been split already.
    """

    def __init__(self, reader: Any, inner: asyncio.Protocol, splitter: Splitter) -> None:
        self.opened = False
        self._reader = reader
        self._inner = inner
        self._feed = splitter.feed
        self._shut = False

    def shut(self) -> None:
        """Split no more: this connection is given up, and the next one has a tap of its own."""
        self._shut = True

    def data_received(self, data: bytes) -> None:
        if self._shut or (not self.opened and self._reader._buffer):
            self._inner.data_received(data)  # not before what waits in the stream is read
            return
        self.opened = True
        try:
            rest = self._feed(data)
        except FrameError as error:
            self._reader.set_exception(nats_errors.ProtocolError(str(error)))
            return
        for frame in rest:
            self._inner.data_received(frame if isinstance(frame, bytes) else _as_sent(frame))

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._inner.connection_lost(error)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


def _as_sent(frame: Incoming) -> bytes:
    """The frame as the server sent it, for nats-py's own parser."""
    sid, subject, reply, headers, payload = frame
    words = [subject, sid, *([reply] if reply is not None else [])]
    if headers is None:
        return b"MSG %b %d\r\n%b\r\n" % (b" ".join(words), len(payload), payload)
    sizes = (len(headers), len(headers) + len(payload))
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (b" ".join(words), *sizes, headers, payload)
