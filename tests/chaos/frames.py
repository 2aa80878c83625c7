"""NATS protocol text cut into frames: a small reader for tests, independent of the product's own.

It knows just enough: which verbs carry a payload, how long it is, and where subject and
reply stand in either direction.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Frame", "Splitter"]

_WITH_PAYLOAD = frozenset({b"MSG", b"HMSG", b"PUB", b"HPUB"})


class Frame(NamedTuple):
    """One protocol message; ``raw`` is all of it, ready to be sent on."""

    verb: bytes
    args: tuple[bytes, ...]
    raw: bytes
    body: bytes = b""  # headers and payload together

    @property
    def subject(self) -> bytes:
        return self.args[0] if self.verb in _WITH_PAYLOAD else b""

    @property
    def reply(self) -> bytes:
        """The reply subject; empty if there is none."""
        sizes = 2 if self.verb.startswith(b"H") else 1
        fixed = 2 if self.verb.endswith(b"MSG") else 1  # the server adds the subscription's id
        inner = self.args[fixed : len(self.args) - sizes]
        return inner[0] if self.verb in _WITH_PAYLOAD and inner else b""

    @property
    def headers(self) -> bytes:
        return self.body[: int(self.args[-2])] if self.verb in (b"HMSG", b"HPUB") else b""

    @property
    def payload(self) -> bytes:
        return self.body[len(self.headers) :]

    @property
    def is_puback(self) -> bool:
        """A server's answer to a JetStream publish: a small JSON text without a reply subject."""
        start = self.payload[:400]
        return not self.reply and start[:1] == b"{" and b'"stream"' in start and b'"seq"' in start


class Splitter:
    """Bytes in, in any portions; whole frames out, in order."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes; what is left waits for the next portion."""
        self._rest += data
        frames: list[Frame] = []
        start = 0
        while (frame := self._frame_at(start)) is not None:
            frames.append(frame)
            start += len(frame.raw)
        del self._rest[:start]
        return frames

    def _frame_at(self, start: int) -> Frame | None:
        line_end = self._rest.find(b"\r\n", start)
        if line_end < 0:
            return None
        line = bytes(self._rest[start:line_end])
        verb, _, rest = line.partition(b" ")
        verb = verb.upper()
        if verb not in _WITH_PAYLOAD:
            return Frame(verb, (rest,), line + b"\r\n")
        args = tuple(rest.split())
        body_start = line_end + 2
        end = body_start + int(args[-1]) + 2
        if end > len(self._rest):
            return None
        return Frame(
            verb, args, bytes(self._rest[start:end]), bytes(self._rest[body_start : end - 2])
        )
