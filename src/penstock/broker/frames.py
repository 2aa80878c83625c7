"""Frames of the NATS wire protocol: bytes in, frames out, and the other way round.

Pure: no sockets, no clock, no event loop, so the asynchronous link and a synchronous
reader share it. Whatever the chunks a network cuts the bytes into, `Splitter` finds
the same frames in the same order, each byte looked at a bounded number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.broker.errors import BadHeader

__all__ = [
    "FrameError",
    "Handler",
    "Incoming",
    "Splitter",
    "header_lines",
    "parse_headers",
    "publish_frame",
    "status_of",
]

CRLF = b"\r\n"
HEADER_OVERHEAD = 12  # "NATS/1.0", its line break and the empty line count as payload
MAX_LINE_BYTES = 1 << 20  # INFO grows with the cluster; beyond this it is not NATS

_HEADER_NAME = re.compile(r"[!-9;-~]+")  # printable ASCII without the colon

Handler = Callable[[bytes, bytes | None, bytes | None, bytes], None]
"""subject, reply, raw header block, payload: called at once, must neither raise nor wait."""


class FrameError(ValueError):
    """Bytes that no NATS server sends: the connection cannot be trusted any further."""


class Incoming(NamedTuple):
    """A message nobody registered for."""

    sid: bytes
    subject: bytes
    reply: bytes | None
    headers: bytes | None
    payload: bytes


class Splitter:
    """Cuts a byte stream into frames and hands messages to the handler of their sid.

    ``feed`` calls the handlers synchronously, in order, and returns the rest: messages
    without a handler as `Incoming`, control lines (PING, INFO, -ERR …) as ``bytes``
    with their line break. A handler that raises is reported to ``on_fault`` and costs
    only its own message.
    """

    __slots__ = ("_held", "_needed", "_parts", "bytes_in", "handlers", "messages_in", "on_fault")

    def __init__(self, on_fault: Callable[[Exception], None] | None = None) -> None:
        self.handlers: dict[bytes, Handler] = {}
        self.on_fault = on_fault
        self.messages_in = 0
        self.bytes_in = 0
        self.reset()

    def reset(self) -> None:
        """Forget a half-received frame, as after a lost connection. Handlers stay."""
        self._parts: list[bytes] = []
        self._held = 0
        self._needed = 0

    def feed(self, data: bytes) -> list[Incoming | bytes]:
        """Take the next chunk. Raises `FrameError` for what is not NATS."""
        self.bytes_in += len(data)
        if self._parts:
            self._parts.append(data)
            self._held += len(data)
            if self._held < self._needed:
                return []
            data = b"".join(self._parts)
            self._parts = []
        return self._split(data)

    # One flat loop on purpose: it runs once per message, and every call costs more than its body.
    def _split(self, data: bytes) -> list[Incoming | bytes]:
        position, size, count = 0, len(data), 0
        find, handlers = data.find, self.handlers
        rest: list[Incoming | bytes] = []
        while position < size:
            line_end = find(CRLF, position)
            if line_end < 0:
                self._keep_line(data, position)
                break
            body = line_end + 2
            first = data[position]
            try:
                if first == 77:  # MSG subject sid [reply] size
                    words = data[position + 4 : line_end].split()
                    many = len(words)
                    headers_end = body
                elif first == 72:  # HMSG subject sid [reply] header-size size
                    words = data[position + 5 : line_end].split()
                    many = len(words) - 1
                    headers_end = body + int(words[-2])
                else:
                    rest.append(data[position:body])
                    position = body
                    continue
                end = body + int(words[-1])
            except (ValueError, IndexError):
                raise _malformed(data[position:line_end]) from None
            if not 3 <= many <= 4 or not body <= headers_end <= end:
                raise _malformed(data[position:line_end])
            if end + 2 > size:
                self._keep(data, position, end + 2)
                break
            reply = words[2] if many == 4 else None
            headers = data[body:headers_end] if first == 72 else None
            payload = data[headers_end:end]
            position = end + 2
            count += 1
            handler = handlers.get(words[1])
            if handler is None:
                rest.append(Incoming(words[1], words[0], reply, headers, payload))
                continue
            try:
                handler(words[0], reply, headers, payload)
            except Exception as error:  # noqa: BLE001 - one handler's fault must not end the connection
                self._report(error)
        self.messages_in += count
        return rest

    def _keep_line(self, data: bytes, position: int) -> None:
        if len(data) - position > MAX_LINE_BYTES:
            raise FrameError(f"a control line of more than {MAX_LINE_BYTES} bytes")
        self._keep(data, position, 0)

    def _keep(self, data: bytes, position: int, needed_to: int) -> None:
        self._parts = [data[position:]]
        self._held = len(data) - position
        self._needed = needed_to - position

    def _report(self, error: Exception) -> None:
        if self.on_fault is not None:
            self.on_fault(error)


def publish_frame(subject: bytes, reply: bytes, headers: bytes | None, payload: bytes) -> bytes:
    """The frame that publishes ``payload``; ``headers`` are raw lines as of `header_lines`."""
    if headers is None:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)
    size = HEADER_OVERHEAD + len(headers)
    sizes = (size, size + len(payload))
    return b"HPUB %b %b %d %d\r\nNATS/1.0\r\n%b\r\n%b\r\n" % (
        subject, reply, *sizes, headers, payload,
    )  # fmt: skip


def header_lines(mapping: Mapping[str, str]) -> bytes:
    r"""Header fields as raw lines, ready for a publish.

    Raises `BadHeader` for a name or value that could not be read back as it is.

    >>> header_lines({"Nats-Msg-Id": "a1"})
    b'Nats-Msg-Id: a1\r\n'
    """
    lines = []
    for name, value in mapping.items():
        if not _HEADER_NAME.fullmatch(name):
            raise BadHeader(f"{name!r} is not a header name")
        if "\r" in value or "\n" in value:
            raise BadHeader(f"the value of header {name!r} holds a line break")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode()


def parse_headers(raw: bytes | None) -> dict[str, str]:
    """The fields of a raw header block, names as sent; of a repeated name the last one counts."""
    fields: dict[str, str] = {}
    if raw is None:
        return fields
    for line in raw.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            fields[name] = value.strip()
    return fields


def status_of(raw: bytes | None) -> tuple[int, str]:
    """Code and text of a status block such as ``NATS/1.0 404 No Messages``; else ``(0, "")``."""
    if raw is None or raw[8:9] != b" ":
        return 0, ""
    code, _, text = raw[9 : raw.find(CRLF)].decode("utf-8", "replace").strip().partition(" ")
    return (int(code), text.strip()) if code.isdigit() else (0, "")


def _malformed(line: bytes) -> FrameError:
    return FrameError(f"a malformed message line: {line!r}")
