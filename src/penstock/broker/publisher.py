"""Writing to streams: pipelined, and every answer a value.

A stored message is `Stored`, a broker's refusal is `Refused`, and a write whose answer
got lost is `Unknown`: it may or may not be there. Nothing here repeats a write blindly;
`penstock.broker.bulk` does so only for messages that carry an id of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.broker.errors import BadHeader, LinkError, NoResponders
from penstock.broker.link import Link

if TYPE_CHECKING:
    from penstock.broker.bulk import BulkReport, Failure, Outgoing

__all__ = ["NO_STREAM", "Publisher", "Refused", "Stored", "Unknown", "Written", "write_headers"]

NO_STREAM = 503
WRONG_LAST_SEQUENCE = (10071, 10164)


class Stored(msgspec.Struct, frozen=True, gc=False):
    """The broker holds the message under ``seq``; a ``duplicate`` was there before."""

    seq: int
    duplicate: bool = False
    stream: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker did not store the message, for sure."""

    code: int
    err_code: int
    description: str

    @property
    def is_conflict(self) -> bool:
        """Whether somebody else wrote first: the expected sequence was not the last one."""
        return self.err_code in WRONG_LAST_SEQUENCE

    @property
    def is_unheard(self) -> bool:
        """Whether no stream takes the subject (or JetStream is not up yet)."""
        return self.code == NO_STREAM and self.err_code == 0


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer came: the message may or may not be stored."""

    reason: str


Written = Stored | Refused | Unknown


class Publisher:
    """Publishes into whatever stream takes the subject, over one link.

    As many writes as the link has room for may be under way; the server answers each.
    """

    def __init__(self, link: Link, *, timeout: float = 5.0) -> None:
        self.link = link
        self.timeout = timeout
        self._ask = link.ask

    def send(
        self, subject: bytes, payload: bytes, *, headers: bytes | None = None
    ) -> asyncio.Future[Written]:
        """Write without waiting; the future never fails, whatever becomes of the write.

        Raises at once, with nothing sent, what `Link.publish` raises, and `LinkBusy` at
        the link's bound: await `Link.room` first.
        """
        return self._ask(subject, payload, headers, self.timeout, _settle_write)

    async def publish(
        self,
        subject: bytes,
        payload: bytes,
        *,
        msg_id: str | None = None,
        headers: bytes | None = None,
        expect_subject_seq: int | None = None,
    ) -> Written:
        """Write one message and wait for its fate, waiting for room first.

        Within the stream's window a ``msg_id`` is stored once. ``expect_subject_seq``
        stores only if that is the subject's last sequence (0: if there is none).
        """
        lines = write_headers(headers, msg_id, expect_subject_seq)
        await self.link.room()
        return await self.send(subject, payload, headers=lines)

    async def publish_many(
        self,
        messages: Iterable[Outgoing] | AsyncIterable[Outgoing],
        *,
        window: int = 1024,
        on_failure: Callable[[Failure], None] | None = None,
    ) -> BulkReport:
        """Write any number of messages in bounded memory; see `penstock.broker.bulk`."""
        from penstock.broker.bulk import publish_many

        return await publish_many(self, messages, window=window, on_failure=on_failure)


def write_headers(
    headers: bytes | None, msg_id: str | None = None, expect_subject_seq: int | None = None
) -> bytes | None:
    """``headers`` with the fields of a once-only or compare-and-set write added."""
    if msg_id is not None:
        if not msg_id or not msg_id.isprintable():
            raise BadHeader(f"{msg_id!r} cannot be a message id")
        headers = b"%bNats-Msg-Id: %b\r\n" % (headers or b"", msg_id.encode())
    if expect_subject_seq is not None:
        expected = b"Nats-Expected-Last-Subject-Sequence: %d\r\n" % expect_subject_seq
        headers = (headers or b"") + expected
    return headers


class _Fault(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    error: _Fault | None = None
    seq: int = 0
    duplicate: bool = False
    stream: str = ""


_decode_stored = msgspec.json.Decoder(Stored).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode


def _settle_write(
    future: asyncio.Future[Any], _headers: bytes | None, payload: bytes, error: LinkError | None
) -> None:
    if error is None:
        future.set_result(_written(payload))
    elif isinstance(error, NoResponders):
        future.set_result(Refused(NO_STREAM, 0, "no stream takes this subject"))
    else:
        future.set_result(Unknown(error.message))


def _written(payload: bytes) -> Written:
    try:
        if b'"error"' not in payload:
            return _decode_stored(payload)
        answer = _decode_answer(payload)
    except msgspec.DecodeError as fault:
        return Unknown(f"the answer cannot be read: {fault}")
    if answer.error is None:  # a stream of the name "error"
        return Stored(answer.seq, answer.duplicate, answer.stream)
    return Refused(answer.error.code, answer.error.err_code, answer.error.description)
