"""Pulling from a durable consumer: as many as asked for, as soon as any are there.

One pull request is under way at a time, and only while somebody fetches, so nothing is
held that nobody asked for. With ``ahead`` the next pull leaves before the caller comes
back: more per second, at the price of messages waiting here instead of at the broker.

A fetch always ends by its own deadline. A pull that dies (a lost connection, missed
heartbeats) is made again; messages that arrive for an abandoned one are kept for the
next fetch. A consumer that is gone is `ConsumerGone`: its owner must make it again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count

from penstock.broker.errors import BadSubject, ConsumerGone, LinkClosed, LinkError, PullRefused
from penstock.broker.frames import status_of
from penstock.broker.link import Link, Subscription
from penstock.broker.message import Message

__all__ = ["Message", "Puller"]

LINGER = 0.005  # seconds to wait for the rest of a batch once its first message is here
GRACE = 0.25  # seconds after its expiry that the broker may need to end a pull
MAX_EXPIRES = 30.0  # a longer wait is several pulls
HEARTBEAT = 5.0
MIN_EXPIRES_FOR_HEARTBEAT = 2.0
MIN_EXPIRES = 0.001

GONE = ("consumer deleted", "leadership change", "consumer is push based", "stream deleted")


class _Pull:
    """One request under way: how many it may still bring, and when it is certainly dead."""

    __slots__ = ("dead_at", "left", "silence", "token")

    def __init__(self, token: bytes, left: int, dead_at: float, silence: float) -> None:
        self.token = token
        self.left = left
        self.dead_at = dead_at
        self.silence = silence  # seconds without a sign of life that mean it is dead; 0: unwatched


class Puller:
    """Fetches from one consumer, for one caller at a time. Made by `Puller.open`."""

    def __init__(self, link: Link, stream: str, consumer: str, *, ahead: int = 0) -> None:
        if any(not name or "." in name or name.split() != [name] for name in (stream, consumer)):
            raise BadSubject(f"{stream!r}, {consumer!r} cannot name a stream and its consumer")
        self.link = link
        self.stream = stream
        self.consumer = consumer
        self.ahead = ahead
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}".encode()
        self._inbox = f"{link.client.new_inbox()}.".encode()
        self._subscription: Subscription | None = None
        self._buffer: deque[Message] = deque()
        self._pull: _Pull | None = None
        self._fault: LinkError | None = None
        self._tokens = count(1)
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lingering = False

    @classmethod
    async def open(cls, link: Link, stream: str, consumer: str, *, ahead: int = 0) -> Puller:
        """Be ready to fetch. Whether the consumer exists shows at the first fetch.

        ``ahead`` is how many messages may be asked for before they are fetched.
        """
        puller = cls(link, stream, consumer, ahead=ahead)
        inbox = f"{puller._inbox.decode()}*"
        puller._subscription = await link.subscribe(inbox, puller._received)
        link.on_disconnect(puller._disconnected)
        link.on_reconnect(puller._wake)
        return puller

    async def stop(self) -> None:
        """End the subscription and give back what nobody fetched. Safe to repeat."""
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        self.link.forget(self._disconnected)
        self.link.forget(self._wake)
        self._wake()
        try:
            await subscription.drain()
        finally:
            while self._buffer:
                self._buffer.popleft().nak()

    @property
    def buffered(self) -> int:
        """Messages received and not yet fetched."""
        return len(self._buffer)

    async def fetch(self, most: int, wait: float) -> list[Message]:
        """At most ``most`` messages: whatever is there, or the first to come within ``wait`` s.

        ``[]`` when none came. Raises `ConsumerGone`, `PullRefused` and `LinkClosed`.
        A cancelled fetch loses nothing: its messages go to the next one.
        """
        if self._waiter is not None:
            raise RuntimeError("a puller serves one fetch at a time")
        deadline = self._loop.time() + wait
        while not self._buffer:
            self._raise_faults()
            now = self._loop.time()
            if now >= deadline:
                return []
            if self._is_dead(now):
                self._pull = None
            if self._pull is None and self.link.is_connected:
                self._ask(most, deadline - now)
            await self._news(deadline)
        return self._take(most)

    def _raise_faults(self) -> None:
        if self._subscription is None:
            raise LinkClosed("the puller was stopped", remedy="open a new puller")
        if self.link.closed:
            raise LinkClosed("the link of this puller was closed")
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def _take(self, most: int) -> list[Message]:
        buffer = self._buffer
        if len(buffer) <= most:
            taken = list(buffer)
            buffer.clear()
        else:
            taken = [buffer.popleft() for _ in range(most)]
        if self.ahead and self._pull is None and len(buffer) < self.ahead:
            self._ask_ahead()
        return taken

    def _ask_ahead(self) -> None:
        if self._fault is None and self.link.is_connected and not self.link.closed:
            self._ask(self.ahead, MAX_EXPIRES)

    def _ask(self, most: int, wait: float) -> None:
        """Send a pull that ends as soon as it has brought anything, or when it expires."""
        expires = min(max(wait, MIN_EXPIRES), MAX_EXPIRES)
        token = self._inbox + b"%d" % next(self._tokens)
        heartbeat = min(HEARTBEAT, expires / 3) if expires >= MIN_EXPIRES_FOR_HEARTBEAT else 0.0
        body = b'{"batch":%d,"no_wait":true,"expires":%d' % (most, int(expires * 1e9))
        if heartbeat:
            body += b',"idle_heartbeat":%d' % int(heartbeat * 1e9)
        self._pull = _Pull(token, most, 0.0, heartbeat * 2.5)
        now = self._loop.time()
        self._pull.dead_at = now + min(expires + GRACE, self._pull.silence or MAX_EXPIRES + GRACE)
        self.link.publish(self._subject, body + b"}", reply=token)

    def _is_dead(self, now: float) -> bool:
        return self._pull is not None and now >= self._pull.dead_at

    async def _news(self, deadline: float) -> None:
        """Wait for messages, the end of the pull, a change of the link, or a deadline."""
        until = min(deadline, self._pull.dead_at) if self._pull is not None else deadline
        self._waiter = self._loop.create_future()
        self._timer = self._loop.call_at(until, self._wake)
        self._lingering = False
        if self._subscription is None or self.link.closed:
            self._wake()
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _disconnected(self) -> None:
        self._pull = None  # its answers went to a connection that is no more
        self._wake()

    def _received(
        self, subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes
    ) -> None:
        if reply is None or (headers is not None and headers.startswith(b"NATS/1.0 ")):
            self._status(subject, headers)
            return
        self._buffer.append(Message(self.link, subject, reply, headers, payload))
        pull = self._pull
        if pull is None:
            self._wake()
            return
        pull.left -= 1
        if pull.left <= 0:
            self._pull = None
            self._wake()
        elif self._waiter is not None and not self._lingering:
            self._linger()

    def _linger(self) -> None:
        self._lingering = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LINGER, self._wake)

    def _status(self, subject: bytes, headers: bytes | None) -> None:
        pull = self._pull
        if pull is None or subject != pull.token:
            return  # of a pull that was given up long ago
        code, text = status_of(headers)
        if code == 100:
            pull.dead_at = max(pull.dead_at, self._loop.time() + pull.silence)
            return
        self._pull = None
        self._fault = self._verdict(code, text)
        self._wake()

    def _verdict(self, code: int, text: str) -> LinkError | None:
        """What the end of a pull means: nothing special, gone, or refused."""
        where = f"consumer {self.consumer!r} of stream {self.stream!r}"
        lowered = text.lower()
        if code == 503 or (code == 409 and lowered.startswith(GONE)):
            return ConsumerGone(f"{where} does not answer: {text or 'nobody responds'}")
        if code in (404, 408) or lowered.startswith(("batch completed", "server shutdown")):
            return None
        return PullRefused(f"{where} refused a pull: {code} {text}")
