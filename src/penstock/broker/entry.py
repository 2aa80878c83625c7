"""One value of a bucket at one revision, and what its key may look like.

A bucket is a JetStream stream with one subject per key, as NATS clients in all languages
agree on. A delete is a record too: an empty message that says so in its headers, or that
the server left behind when a key's time was over.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from penstock.core.errors import BadInput

if TYPE_CHECKING:
    from penstock.broker.puller import Message

__all__ = ["Entry", "Operation", "check_key", "check_pattern", "entry_of", "operation_of"]

_KEY = re.compile(r"[-/_=A-Za-z0-9]+(?:\.[-/_=A-Za-z0-9]+)*")
_PATTERN = re.compile(r"(?:(?:\*|[-/_=A-Za-z0-9]+)\.)*(?:\*|>|[-/_=A-Za-z0-9]+)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Operation(StrEnum):
    """What a record of a bucket did to its key."""

    PUT = "PUT"
    DEL = "DEL"
    PURGE = "PURGE"


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A key's value at one revision. ``delta`` counts the records known to come after it."""

    key: str
    value: bytes
    revision: int
    operation: Operation = Operation.PUT
    created_at_ns: int = 0
    delta: int = 0

    @property
    def created_at(self) -> datetime:
        """When the broker stored it, by the broker's clock, to the microsecond."""
        return _EPOCH + timedelta(microseconds=self.created_at_ns // 1000)

    @property
    def deleted(self) -> bool:
        """Is this a marker that the key is gone, rather than a value?"""
        return self.operation is not Operation.PUT


def check_key(key: str) -> str:
    """``key`` if a bucket may have it; raises `BadInput`. Wildcards and empty parts may not."""
    if _KEY.fullmatch(key) is None:
        raise BadInput(
            f"{key!r} cannot be a key",
            remedy="use letters, digits and - _ = / with single dots between parts.",
        )
    return key


def check_pattern(pattern: str) -> str:
    """``pattern`` if it is a key or has wildcards as whole parts (``*``, at the end ``>``)."""
    if _PATTERN.fullmatch(pattern) is None:
        raise BadInput(f"{pattern!r} is not a key pattern", remedy="as in orders.*.state or a.>")
    return pattern


def operation_of(headers: bytes | None) -> Operation:
    """What a record did, from its raw headers. Most records have none: that is a put."""
    if headers is None:
        return Operation.PUT
    if b"KV-Operation: DEL" in headers or b"Nats-Marker-Reason: Remove" in headers:
        return Operation.DEL
    if b"KV-Operation: PURGE" in headers or b"Nats-Marker-Reason:" in headers:
        return Operation.PURGE
    return Operation.PUT


def entry_of(message: Message, prefix_bytes: int) -> Entry:
    """The entry that a delivered record says; ``prefix_bytes`` are cut off its subject."""
    headers, delivery = message.headers, message.delivery
    return Entry(
        message.subject[prefix_bytes:].decode(),
        message.payload,
        delivery.stream_seq,
        Operation.PUT if headers is None else operation_of(headers),
        delivery.stored_at_ns,
        delivery.pending,
    )
