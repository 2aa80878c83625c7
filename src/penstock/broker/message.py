"""One message pulled from a stream, and the five things that can be said about it.

Exactly one of ack, nak and term is ever sent for a message; saying a second one does
nothing and returns ``False``. All but `Message.ack_confirmed` are sent without waiting:
one lost in a crash means the message comes again after its ack wait.
"""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

from penstock.broker.errors import LinkError
from penstock.broker.link import Link

__all__ = ["Delivery", "Message"]

MAX_REASON_BYTES = 512


class Delivery(Struct, frozen=True, gc=False):
    """What the broker says about this delivery in the ack subject."""

    stream: str
    consumer: str
    delivered: int
    stream_seq: int
    consumer_seq: int
    stored_at_ns: int
    pending: int
    domain: str


class Message:
    """A message with the link to answer on. Frozen but for its one final answer."""

    __slots__ = ("_delivery", "_link", "headers", "payload", "reply", "subject")

    def __init__(
        self, link: Link, subject: bytes, reply: bytes, headers: bytes | None, payload: bytes
    ) -> None:
        self._link: Link | None = link
        self._delivery: Delivery | None = None
        self.subject = subject
        self.reply = reply
        self.headers = headers
        self.payload = payload

    def ack(self) -> bool:
        """Done: the broker may forget it. Whether this was the one final answer."""
        link = self._link
        if link is None:
            return False
        self._link = None
        return link.answer(self.reply, b"+ACK")

    def nak(self, delay: timedelta | float | None = None) -> bool:
        """Not done: deliver it again, after ``delay`` (seconds if a number) or at once."""
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        if seconds is None or seconds <= 0:
            return self._finally(b"-NAK")
        return self._finally(b'-NAK {"delay":%d}' % int(seconds * 1e9))

    def term(self, reason: str = "") -> bool:
        """Never deliver it again; ``reason`` shows in the broker's advisory."""
        words = " ".join(reason.split()).encode()[:MAX_REASON_BYTES]
        return self._finally(b"+TERM " + words if words else b"+TERM")

    def progress(self) -> bool:
        """Still working: the ack wait starts anew. ``False`` after a final answer."""
        return self._link is not None and self._link.answer(self.reply, b"+WPI")

    async def ack_confirmed(self, timeout: float | None = None) -> bool:
        """Ack and wait until the broker says it took effect.

        ``False`` when it did not answer; then it may be tried again.
        """
        link = self._link
        if link is None:
            return False
        self._link = None
        try:
            await link.request(self.reply, b"+ACK", timeout=timeout)
        except LinkError:
            self._link = link
            return False
        return True

    @property
    def settled(self) -> bool:
        """Whether the one final answer has been sent."""
        return self._link is None

    @property
    def delivery(self) -> Delivery:
        """Everything the broker says about this delivery, read at the first use."""
        known = self._delivery
        if known is None:
            known = self._delivery = parse_ack_subject(self.reply)
        return known

    @property
    def stream(self) -> str:
        return self.delivery.stream

    @property
    def consumer(self) -> str:
        return self.delivery.consumer

    @property
    def delivered(self) -> int:
        """How many times it has been handed out, this time included."""
        return self.delivery.delivered

    @property
    def stream_seq(self) -> int:
        return self.delivery.stream_seq

    @property
    def consumer_seq(self) -> int:
        return self.delivery.consumer_seq

    @property
    def stored_at_ns(self) -> int:
        """When the broker stored it, in nanoseconds since 1970."""
        return self.delivery.stored_at_ns

    @property
    def pending(self) -> int:
        """How many more the consumer could deliver when this one was."""
        return self.delivery.pending

    def __repr__(self) -> str:
        return f"<Message {self.subject.decode(errors='replace')} {len(self.payload)} bytes>"

    def _finally(self, answer: bytes) -> bool:
        link = self._link
        if link is None:
            return False
        self._link = None
        return link.answer(self.reply, answer)


def parse_ack_subject(reply: bytes) -> Delivery:
    """Read an ack subject: ``$JS.ACK`` and seven tokens, or with domain and account before them.

    Raises ``ValueError`` for anything else.
    """
    tokens = reply.split(b".")
    many = len(tokens)
    if not reply.startswith(b"$JS.ACK.") or many not in (9, 11, 12):
        raise ValueError(f"not an ack subject: {reply!r}")
    domain = ""
    if many > 9:
        domain = "" if tokens[2] == b"_" else tokens[2].decode()
        del tokens[2:4]
    stream, consumer, delivered, stream_seq, consumer_seq, stored_at_ns, pending = tokens[2:9]
    return Delivery(
        stream.decode(),
        consumer.decode(),
        int(delivered),
        int(stream_seq),
        int(consumer_seq),
        int(stored_at_ns),
        int(pending),
        domain,
    )
