"""A wire tap: what workers say about jobs and results, in the order the server heard it.

Two subscriptions on one bare socket, because clients give each subscription a task of its
own and then the order between an ACK and a KV put is gone. It hears what was *said*;
what was *stored* is read from the bucket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.chaos.frames import Frame, Splitter

__all__ = ["Put", "Settlement", "Tap", "parsed"]

_KV = b"$KV.natq_results."
_ACK = b"$JS.ACK."


def parsed(value: bytes) -> Any:
    """The JSON value, or ``None`` if it is not JSON that every language reads."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    with contextlib.suppress(ValueError):
        return json.loads(value, parse_constant=refuse)
    return None


@dataclass(frozen=True, slots=True)
class Settlement:
    """One word about a delivery: ``ACK``, ``NAK``, ``TERM`` or ``WPI``, and what followed it."""

    seq: int
    delivery: int
    verb: str
    rest: str
    at: float

    @property
    def delay_ns(self) -> int | None:
        """The delay a NAK asks for."""
        said = parsed(self.rest.encode()) if self.verb == "NAK" else None
        return said.get("delay") if isinstance(said, dict) else None


@dataclass(frozen=True, slots=True)
class Put:
    """One write to ``natq_results``; ``value`` is ``None`` for a delete or purge marker."""

    key: str
    value: bytes | None
    at: float


class Tap:
    """Listens from `start` to `stop`; ``heard`` only grows."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 4222
        self._task: asyncio.Task[None] | None = None
        self.heard: list[Settlement | Put] = []

    async def start(self) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        hello = {"verbose": False, "pedantic": False, "headers": True, "protocol": 1}
        writer.write(
            b"CONNECT %b\r\nSUB $JS.ACK.> 1\r\nSUB $KV.natq_results.> 2\r\nPING\r\n"
            % json.dumps(hello).encode()
        )
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._listen(reader, writer, ready), name="tap")
        async with asyncio.timeout(10):
            await ready.wait()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def about(self, seq: int, *verbs: str) -> list[Settlement]:
        """What was said about a message of ``natq_jobs``, optionally only some verbs."""
        return [
            said
            for said in self.heard
            if isinstance(said, Settlement)
            and said.seq == seq
            and (not verbs or said.verb in verbs)
        ]

    def puts(self, key_prefix: str) -> list[Put]:
        return [s for s in self.heard if isinstance(s, Put) and s.key.startswith(key_prefix)]

    async def _listen(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ready: asyncio.Event
    ) -> None:
        splitter = Splitter()
        try:
            while data := await reader.read(1 << 18):
                for frame in splitter.feed(data):
                    if frame.verb == b"PING":
                        writer.write(b"PONG\r\n")
                    elif frame.verb == b"PONG":
                        ready.set()
                    elif frame.subject.startswith(_ACK):
                        self._note_settlement(frame)
                    elif frame.subject.startswith(_KV):
                        self._note_put(frame)
        except OSError:
            return  # a check that stops the server does not listen any more
        finally:
            writer.close()

    def _note_settlement(self, frame: Frame) -> None:
        tokens = frame.subject.decode().split(".")
        if len(tokens) > 9:  # the newer form names domain and account first
            tokens = [*tokens[:2], *tokens[4:]]
        if tokens[2] != "natq_jobs":
            return
        text = frame.payload.decode(errors="replace")
        verb, _, rest = text.partition(" ")
        verb = verb.lstrip("+-") or "ACK"  # an empty payload acknowledges too
        seq, delivery = int(tokens[5]), int(tokens[4])
        self.heard.append(Settlement(seq, delivery, verb, rest, time.monotonic()))

    def _note_put(self, frame: Frame) -> None:
        key = frame.subject[len(_KV) :].decode()
        gone = b"KV-Operation" in frame.headers or b"Nats-Marker-Reason" in frame.headers
        self.heard.append(Put(key, None if gone else frame.payload, time.monotonic()))
