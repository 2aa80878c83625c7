"""The words of OmniQ: names of queues, jobs as they travel, and what may stand in a field.

Every key of a queue starts with its wrapped name, so that a queue lives in one cluster
slot. Numbers are decimal integer text. Keys of our own start with ``{queue}:x:`` and extra
hash fields with ``x_``; other SDKs do not look at either.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from penstock.core import codec, ids
from penstock.protocols.omniq.errors import BadArgs, BadPayload

__all__ = [
    "DEFAULT_BACKOFF_MS",
    "DEFAULT_MAX_ATTEMPTS",
    "DEFAULT_TIMEOUT_MS",
    "LANES",
    "PAUSED",
    "Compat",
    "Lane",
    "Paused",
    "PublishedId",
    "ReserveResult",
    "ReservedJob",
    "cut_error",
    "encode_payload",
    "group_id",
    "is_shared_name",
    "now_ms",
    "queue_base",
    "text",
    "ulid",
]

DEFAULT_TIMEOUT_MS: Final = 60_000
DEFAULT_MAX_ATTEMPTS: Final = 3
DEFAULT_BACKOFF_MS: Final = 5_000
MAX_ERROR_BYTES: Final = 4096

Compat: TypeAlias = Literal["v1", "v4"]
Lane: TypeAlias = Literal["wait", "gwait", "delayed", "failed", "completed"]
LANES: Final = ("wait", "gwait", "delayed", "failed", "completed")

_SHARED = re.compile(r"[A-Za-z0-9._-]{1,128}")


class PublishedId(str):
    """A job id as ``publish`` returns it; ``kept`` is true if a live job had it already."""

    __slots__ = ("kept",)
    kept: bool

    def __new__(cls, value: str, kept: bool) -> PublishedId:
        made = super().__new__(cls, value)
        made.kept = kept
        return made


class Paused(msgspec.Struct, frozen=True):
    """The queue is paused: nothing was leased."""

    status: Literal["PAUSED"] = "PAUSED"


class ReservedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its lease. ``payload`` is the JSON text exactly as it was published.

    ``attempt`` counts from 1; ``returned`` how often it was handed out and given back besides.
    """

    job_id: str
    payload: str
    lock_until_ms: int
    attempt: int
    gid: str
    lease_token: str
    max_attempts: int
    timeout_ms: int
    checkpoint: bytes | None = None
    returned: int = 0
    status: Literal["JOB"] = "JOB"


PAUSED: Final = Paused()
ReserveResult: TypeAlias = ReservedJob | Paused | None


def queue_base(queue: str) -> str:
    """The prefix of a queue's keys: its name in one pair of braces. Raises `BadArgs` if empty.

    >>> queue_base("mail"), queue_base("{mail}")
    ('{mail}', '{mail}')
    """
    if not queue or queue == "{}":
        raise BadArgs("a queue needs a name")
    return queue if "{" in queue and "}" in queue else f"{{{queue}}}"


def is_shared_name(queue: str) -> bool:
    """Whether SDK 4.0 accepts this queue name too."""
    return _SHARED.fullmatch(queue.removeprefix("{").removesuffix("}")) is not None


def now_ms() -> int:
    """This machine's clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def ulid() -> str:
    """A new job id: 26 characters that sort by the time they were made."""
    return ids.ulid()


def group_id(gid: str | None) -> str:
    """The gid without surrounding whitespace; empty means ungrouped."""
    return gid.strip() if gid else ""


def encode_payload(payload: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """The payload as compact JSON. Raises `BadPayload` for what is no object or array, or NaN."""
    if not isinstance(payload, (dict, list)):
        raise BadPayload(f"a payload of type {type(payload).__name__} cannot be published")
    try:
        return codec.encode(payload)
    except codec.JsonError as error:
        raise BadPayload(f"the payload is not JSON: {error}") from error


def cut_error(message: str | bytes | None) -> bytes:
    """An error text of at most 4096 bytes that still ends with a whole character."""
    if not message:
        return b""
    data = message.encode("utf-8", "replace") if isinstance(message, str) else message
    if len(data) > MAX_ERROR_BYTES:
        data = data[:MAX_ERROR_BYTES]
    return data.decode("utf-8", "ignore").encode()


def text(value: object) -> str:
    """A reply as text, whether or not the client decodes its answers."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else str(value)
