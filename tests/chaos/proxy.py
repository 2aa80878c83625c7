"""A connection that can be spoiled: a TCP proxy between a client and its broker.

For NATS it sees single frames, so it can lose exactly the PubAcks a test wants lost, and
it rewrites the server's INFO so that clients never learn a way around it. For Redis (or
NATS under TLS) it moves plain bytes: ``FaultProxy(host, port, frames=False)`` can delay,
cut and swallow, but not pick messages.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from types import TracebackType
from urllib.parse import urlsplit

from tests.chaos.frames import Frame, Splitter
from tests.chaos.harness import eventually

__all__ = ["FaultProxy"]

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
Matcher = Callable[[Frame], bool]


@dataclass(eq=False)
class _Rule:
    """Which frames are lost, on which way, how many more, and with what chance each."""

    matches: Matcher
    towards: str
    left: int | None
    chance: float

    def takes(self, frame: Frame, towards: str, dice: Random) -> bool:
        if self.towards != towards or self.left == 0 or not self.matches(frame):
            return False
        if self.chance < 1.0 and dice.random() >= self.chance:
            return False
        if self.left is not None:
            self.left -= 1
        return True


class FaultProxy:
    """Forwards faithfully until told otherwise; faults add up and end with `heal`."""

    def __init__(self, host: str, port: int, *, frames: bool = True, seed: int = 0) -> None:
        self._target = (host, port)
        self._frames = frames
        self._dice = Random(seed)
        self._rules: list[_Rule] = []
        self._delay = {"client": 0.0, "server": 0.0}
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._server: asyncio.Server | None = None
        self._links: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.port = 0
        self.accepted = 0
        self.dropped: list[Frame] = []

    @classmethod
    def to(cls, url: str, *, seed: int = 0) -> FaultProxy:
        """In front of ``nats://host:port`` (frames) or ``redis://host:port`` (bytes)."""
        parts = urlsplit(url)
        assert parts.hostname and parts.port, f"{url} names no host and port"
        return cls(parts.hostname, parts.port, frames=parts.scheme == "nats", seed=seed)

    @property
    def url(self) -> str:
        return f"{'nats' if self._frames else 'redis'}://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._links)

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    def drop(
        self,
        *,
        acks: int | None = None,
        matching: Matcher | bytes | None = None,
        times: int | None = None,
        chance: float = 1.0,
        towards: str = "client",
    ) -> None:
        """Lose the next ``acks`` PubAcks, or the next ``times`` frames that match (all if None).

        ``matching`` is a predicate, or bytes the subject must contain. ``chance`` makes it a
        matter of luck, ``towards="server"`` loses what the client sends.
        """
        assert self._frames, "a byte proxy cannot tell one message from another"
        if acks is not None:
            matching, times = (lambda frame: frame.is_puback), acks
        if isinstance(matching, bytes):
            wanted = matching
            matching = lambda frame: wanted in frame.subject  # noqa: E731
        assert matching is not None, "say what to drop: acks= or matching="
        self._rules.append(_Rule(matching, towards, times, chance))

    async def dropped_at_least(self, count: int, within: float = 10.0) -> None:
        """Wait until ``count`` frames have been lost in all."""
        await eventually(lambda: len(self.dropped) >= count, within, what=f"{count} lost frames")

    def delay(self, seconds: float, *, towards: str | None = None) -> None:
        """Let everything (or one way) arrive ``seconds`` later, in order."""
        for way in (towards,) if towards else ("client", "server"):
            self._delay[way] = seconds

    def blackhole(self) -> None:
        """Accept connections and bytes but deliver nothing; `heal` delivers what is held."""
        self._flowing.clear()

    def refuse(self) -> None:
        """Cut every connection with a reset and reset each new one, until `heal`."""
        self._refusing = True
        for writer in self._links.values():
            _reset(writer)

    async def cut(self, for_: float = 0.0) -> None:
        """Reset every connection and refuse new ones for that many seconds; returns afterwards."""
        self.refuse()
        await asyncio.sleep(for_)
        self._refusing = False

    def heal(self) -> None:
        """End all faults: rules, delays, refusal, black hole."""
        self._rules.clear()
        self.delay(0.0)
        self._refusing = False
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        if self._refusing:
            _reset(writer)
            return
        self._links[task] = writer
        try:
            await self._link(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # either side may go at any time: that is what this is for
        finally:
            del self._links[task]
            _reset(writer)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        ways = [
            asyncio.create_task(self._pump(reader, far_writer, "server"), name="to-server"),
            asyncio.create_task(self._pump(far_reader, writer, "client"), name="to-client"),
        ]
        try:  # one side gone is both gone
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            far_writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, towards: str
    ) -> None:
        """Move one way. Reading goes on during a delay, so lateness does not become slowness."""
        loop = asyncio.get_running_loop()
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1024)

        async def deliver() -> None:
            while True:
                due, data = await late.get()
                if (wait := due - loop.time()) > 0:
                    await asyncio.sleep(wait)
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()

        async def collect() -> None:
            splitter = Splitter()
            while data := await reader.read(1 << 16):
                if self._frames:
                    data = self._filtered(splitter.feed(data), towards)
                if data:
                    await late.put((loop.time() + self._delay[towards], data))

        halves = [asyncio.create_task(deliver()), asyncio.create_task(collect())]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
            if not halves[0].done():  # the source has ended: hand over what is on its way
                while not late.empty():
                    await asyncio.sleep(0.001)
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)

    def _filtered(self, frames: list[Frame], towards: str) -> bytes:
        kept: list[bytes] = []
        for frame in frames:
            if any(rule.takes(frame, towards, self._dice) for rule in self._rules):
                self.dropped.append(frame)
            elif frame.verb == b"INFO":
                kept.append(self._disguised(frame))
            else:
                kept.append(frame.raw)
        return b"".join(kept)

    def _disguised(self, info: Frame) -> bytes:
        """The server's INFO as if the proxy were the only server there is."""
        said = json.loads(info.args[0])
        said.pop("connect_urls", None)
        said.pop("ws_connect_urls", None)
        said.update(host="127.0.0.1", port=self.port)
        return b"INFO " + json.dumps(said).encode() + b"\r\n"


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, as a crashed machine or an angry firewall would."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
