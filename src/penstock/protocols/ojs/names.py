"""Names on the wire: states, patterns, and where things lie in NATS.

A queue name may hold dots, a subject token may not; `queue_token` writes it so that no two
queues share a token and every token can be read back.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from functools import lru_cache
from typing import Final, Literal
from uuid import UUID

__all__ = [
    "BUCKETS",
    "CRON_NAME",
    "DEFAULT_QUEUE",
    "EVENT_SUBJECTS",
    "JOB_ID",
    "JOB_TYPE",
    "QUEUE_NAME",
    "STATES",
    "STREAM",
    "STREAM_SUBJECTS",
    "TERMINAL",
    "WAITING",
    "Bucket",
    "State",
    "consumer_name",
    "event_subject",
    "fixed_id",
    "queue_of_token",
    "queue_subject",
    "queue_token",
]

State = Literal[
    "scheduled",
    "available",
    "pending",
    "active",
    "retryable",
    "completed",
    "cancelled",
    "discarded",
]
STATES: Final[tuple[State, ...]] = (
    "scheduled",
    "available",
    "pending",
    "active",
    "retryable",
    "completed",
    "cancelled",
    "discarded",
)
TERMINAL: Final[frozenset[str]] = frozenset({"completed", "cancelled", "discarded"})
WAITING: Final[frozenset[str]] = frozenset({"scheduled", "available", "pending", "retryable"})

DEFAULT_QUEUE: Final = "default"
MAX_QUEUE_NAME: Final = 128
MAX_TYPE_BYTES: Final = 255

JOB_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
JOB_TYPE: Final = re.compile(
    r"(?=.{1,255}\Z)[a-z][a-z0-9_-]*(?:\.[a-z][a-z0-9_-]*)*", re.ASCII | re.DOTALL
)
QUEUE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,127}", re.ASCII)
CRON_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,254}", re.ASCII)

STREAM: Final = "OJS"
STREAM_SUBJECTS: Final = "ojs.queue.*.jobs"
EVENT_SUBJECTS: Final = "ojs.events.>"


class Bucket(StrEnum):
    """KV buckets, history 1. `JOBS` is the truth about jobs; nothing else keeps their state."""

    JOBS = "ojs-jobs"
    QUEUES = "ojs-queues"
    CRON = "ojs-cron"
    WORKERS = "ojs-workers"
    WORKFLOWS = "ojs-workflows"
    UNIQUE = "ojs-unique"
    SCHEMAS = "ojs-schemas"
    WEBHOOKS = "ojs-webhooks"


BUCKETS: Final = tuple(Bucket)

_UNSAFE: Final = re.compile(rb"[^a-z0-9_-]")


@lru_cache(maxsize=10_000)
def queue_token(queue: str) -> str:
    """One subject token for ``queue``: lower-case letters, digits, ``-`` and ``_`` as they
    are, every other byte as ``=`` and two hex digits.

    >>> queue_token("mail.eu-1")
    'mail=2Eeu-1'
    """
    return _UNSAFE.sub(lambda m: b"=%02X" % m[0][0], queue.encode()).decode("ascii")


def queue_of_token(token: str) -> str:
    """The queue that a token stands for.

    >>> queue_of_token("mail=2Eeu-1")
    'mail.eu-1'
    """
    data = re.sub(rb"=([0-9A-F]{2})", lambda m: bytes([int(m[1], 16)]), token.encode("ascii"))
    return data.decode()


def queue_subject(queue: str) -> str:
    """Where wake-ups for ``queue`` go."""
    return f"ojs.queue.{queue_token(queue)}.jobs"


def consumer_name(queue: str) -> str:
    """The durable pull consumer of ``queue``."""
    return f"ojs-{queue_token(queue)}"


def event_subject(event_type: str) -> str:
    """Where events of a type (``job.completed``) go."""
    return f"ojs.events.{event_type}"


def fixed_id(at_ms: int, *parts: str) -> str:
    """A UUIDv7 that is the same wherever it is computed: time from ``at_ms``, the rest from
    ``parts``. Who writes under it create-only can never write twice."""
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=10).digest()
    number = (at_ms & (1 << 48) - 1) << 80 | int.from_bytes(digest, "big")
    number = number & ~(0xF << 76) | 0x7 << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    return str(UUID(int=number))
