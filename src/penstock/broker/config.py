"""Streams, consumers and stored messages as values: what is sent to JetStream and comes back.

Only the fields we use. Unknown ones in an answer are passed over, so a newer server is
understood; unknown ones in a request are refused by the server, so none is invented here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, Self

import msgspec

__all__ = [
    "ConsumerConfig",
    "ConsumerInfo",
    "StoredMessage",
    "StreamConfig",
    "StreamInfo",
    "StreamState",
    "from_nanoseconds",
    "nanoseconds",
]


class _Config(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Durations are nanoseconds on the wire; fields left at None are not sent."""

    durations: ClassVar[frozenset[str]] = frozenset()

    def to_wire(self) -> dict[str, Any]:
        fields = msgspec.to_builtins(self, builtin_types=(timedelta,))
        return {key: _outward(value) for key, value in fields.items()}

    @classmethod
    def from_wire(cls, answer: Mapping[str, Any]) -> Self:
        fields = {
            key: from_nanoseconds(value) if key in cls.durations else value
            for key, value in answer.items()
        }
        return msgspec.convert(fields, cls, builtin_types=(timedelta,))


class StreamConfig(_Config):
    """How a stream is kept. ``max_*`` of -1 means no limit, the server's default."""

    durations = frozenset({"max_age", "duplicate_window", "subject_delete_marker_ttl"})

    name: str
    description: str | None = None
    subjects: list[str] | None = None
    retention: Literal["limits", "interest", "workqueue"] | None = None
    storage: Literal["file", "memory"] | None = None
    discard: Literal["old", "new"] | None = None
    discard_new_per_subject: bool | None = None
    max_age: timedelta | None = None
    max_bytes: int | None = None
    max_msgs: int | None = None
    max_msg_size: int | None = None
    max_msgs_per_subject: int | None = None
    max_consumers: int | None = None
    num_replicas: int | None = None
    duplicate_window: timedelta | None = None
    allow_direct: bool | None = None
    allow_rollup_hdrs: bool | None = None
    allow_msg_ttl: bool | None = None
    allow_msg_schedules: bool | None = None
    allow_atomic: bool | None = None
    subject_delete_marker_ttl: timedelta | None = None
    deny_delete: bool | None = None
    deny_purge: bool | None = None
    no_ack: bool | None = None
    compression: Literal["none", "s2"] | None = None
    metadata: dict[str, str] | None = None


class ConsumerConfig(_Config):
    """How a stream is handed out. A ``durable_name`` stays; a mere ``name`` may be inactive
    no longer than ``inactive_threshold``."""

    durations = frozenset({"ack_wait", "inactive_threshold", "idle_heartbeat"})

    name: str | None = None
    durable_name: str | None = None
    description: str | None = None
    deliver_policy: (
        Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"]
        | None
    ) = None
    opt_start_seq: int | None = None
    opt_start_time: datetime | None = None
    ack_policy: Literal["none", "all", "explicit"] | None = None
    ack_wait: timedelta | None = None
    max_deliver: int | None = None
    max_ack_pending: int | None = None
    max_waiting: int | None = None
    backoff: list[timedelta] | None = None
    filter_subject: str | None = None
    filter_subjects: list[str] | None = None
    replay_policy: Literal["instant", "original"] | None = None
    inactive_threshold: timedelta | None = None
    headers_only: bool | None = None
    num_replicas: int | None = None
    mem_storage: bool | None = None
    metadata: dict[str, str] | None = None

    @classmethod
    def from_wire(cls, answer: Mapping[str, Any]) -> Self:
        backoff = answer.get("backoff")
        changed = {"backoff": [from_nanoseconds(step) for step in backoff]} if backoff else {}
        return super().from_wire({**answer, **changed})


class StreamState(msgspec.Struct):
    """What a stream holds now."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    consumer_count: int = 0
    num_subjects: int = 0
    num_deleted: int = 0


class StreamInfo(msgspec.Struct):
    """A stream: its configuration, what it holds, and when it was made."""

    config: StreamConfig
    state: StreamState
    created_at: datetime

    @classmethod
    def from_wire(cls, answer: Mapping[str, Any]) -> StreamInfo:
        return cls(
            StreamConfig.from_wire(answer["config"]),
            msgspec.convert(answer["state"], StreamState),
            msgspec.convert(answer["created"], datetime),
        )


class ConsumerInfo(msgspec.Struct):
    """A consumer: its configuration and how far it has come."""

    stream: str
    name: str
    config: ConsumerConfig
    num_pending: int
    num_ack_pending: int
    num_redelivered: int
    num_waiting: int
    delivered_seq: int
    acked_seq: int

    @classmethod
    def from_wire(cls, answer: Mapping[str, Any]) -> ConsumerInfo:
        return cls(
            stream=answer["stream_name"],
            name=answer["name"],
            config=ConsumerConfig.from_wire(answer["config"]),
            num_pending=answer.get("num_pending", 0),
            num_ack_pending=answer.get("num_ack_pending", 0),
            num_redelivered=answer.get("num_redelivered", 0),
            num_waiting=answer.get("num_waiting", 0),
            delivered_seq=answer.get("delivered", {}).get("stream_seq", 0),
            acked_seq=answer.get("ack_floor", {}).get("stream_seq", 0),
        )


class StoredMessage(msgspec.Struct, frozen=True):
    """A message as it lies in a stream; ``headers`` is the raw block or None."""

    subject: str
    seq: int
    payload: bytes
    headers: bytes | None
    stored_at: datetime

    @classmethod
    def from_wire(cls, answer: Mapping[str, Any]) -> StoredMessage:
        raw = msgspec.convert(answer, _Raw)
        return cls(raw.subject, raw.seq, raw.data, raw.hdrs, raw.time)


class _Raw(msgspec.Struct):
    subject: str
    seq: int
    time: datetime
    data: bytes = b""
    hdrs: bytes | None = None


def nanoseconds(length: timedelta) -> int:
    """Exact, where ``total_seconds()`` would round."""
    return ((length.days * 86400 + length.seconds) * 10**6 + length.microseconds) * 1000


def from_nanoseconds(count: int) -> timedelta:
    return timedelta(microseconds=count // 1000)


def _outward(value: Any) -> Any:
    if isinstance(value, timedelta):
        return nanoseconds(value)
    if isinstance(value, list):
        return [_outward(item) for item in value]
    return value
