"""The record: one job as it lies in the bucket, the only truth about it.

It holds the job as everybody may see it, and what only the engine needs: the number of
its transitions, who holds it, when it must be looked at again, and its latest steps, from
which events are derived. A record never changes; `penstock.protocols.ojs.rules` makes
the next one.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from penstock.protocols.ojs.names import TERMINAL, State
from penstock.protocols.ojs.retry import RetryPolicy
from penstock.protocols.ojs.throttle import RateLimit

__all__ = [
    "MAX_TAIL",
    "Deadlines",
    "Held",
    "Job",
    "Membership",
    "Progress",
    "Record",
    "Step",
    "decode_record",
    "encode_record",
    "public_view",
]

MAX_TAIL: Final = 8


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What everybody may see. Absent stays absent: only what is set is written."""

    specversion: Literal["1.0"]
    id: str
    type: str
    queue: str
    args: Raw
    meta: Raw
    priority: int
    state: State
    attempt: int
    max_attempts: int
    created_at: str
    enqueued_at: str
    retry: RetryPolicy
    scheduled_at: str = ""
    expires_at: str = ""
    started_at: str = ""
    completed_at: str = ""
    cancelled_at: str = ""
    discarded_at: str = ""
    activated_at: str = ""
    next_attempt_at: str = ""
    retry_delay_ms: int | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    errors: tuple[Raw, ...] = ()
    result: Raw | UnsetType = UNSET
    result_stored_at: str = ""
    result_expires_at: str = ""
    result_size_bytes: int = 0
    parent_results: Raw | UnsetType = UNSET
    workflow_id: str = ""
    workflow_step: int | UnsetType = UNSET
    checkpoint: Raw | UnsetType = UNSET
    tags: tuple[str, ...] = ()
    timeout_ms: int = 0
    visibility_timeout_ms: int = 0
    heartbeat_timeout: int = 0
    total_timeout: int = 0
    enqueue_ttl: int = 0
    grace_period: int = 0
    result_ttl: int | UnsetType = UNSET
    unique: Raw | UnsetType = UNSET
    rate_limit: Raw | UnsetType = UNSET
    schema: str = ""
    version: Raw | UnsetType = UNSET
    parent_id: str = ""
    root_id: str = ""


class Held(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who holds an active job. ``fence`` is random per hand-out; ``wake_up`` is where its
    transport message is acknowledged."""

    fence: str
    until_ms: int
    term_ms: int
    worker: str = ""
    started_ms: int = 0
    wake_up: str = ""


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far the newest attempt said it is, from 0 to 1; never goes down within an attempt."""

    updated_at: str
    value: float | None = None
    message: str = ""
    data: Raw | UnsetType = UNSET


class Deadlines(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Instants that were settled when they came up, in milliseconds; zero is never."""

    run_ms: int = 0
    expires_ms: int = 0
    start_by_ms: int = 0
    finish_by_ms: int = 0
    timeout_ms: int = 0
    prune_result_ms: int = 0
    purge_ms: int = 0


class Membership(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which place in which workflow a job fills, or which cron and instant fired it."""

    workflow: str = ""
    node: str = ""
    step: int = 0
    cron: str = ""
    nominal_ms: int = 0


class Step(Struct, frozen=True, array_like=True):
    """One transition: what the event projector and repeated requests need to know of it."""

    n: int
    at_ms: int
    kind: str
    came_from: str
    attempt: int
    worker: str = ""
    request: str = ""
    detail: dict[str, Any] = {}


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``n``: number of transitions. ``write_id``: random per write, tells our write from
    another's. ``order``: place among equals, in microseconds of its last enqueue. ``returned``:
    attempts given back. ``due_ms``: when time alone changes something. ``txn``: visible once
    that commit is there; ``staged``: not yet visible."""

    job: Job
    n: int
    write_id: str
    order: int
    created_ms: int
    due_ms: int = 0
    held: Held | None = None
    at: Deadlines = Deadlines()
    returned: int = 0
    deaths: int = 0
    dead_letter: bool = False
    unique_key: str = ""
    unique_replaces: str = ""
    limit: RateLimit | None = None
    tenant: str = ""
    member: Membership | None = None
    txn: str = ""
    staged: bool = False
    checkpoint_seq: int = 0
    iteration: int = 0
    progress: Progress | None = None
    tail: tuple[Step, ...] = ()
    extra: dict[str, Raw] = {}

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def state(self) -> State:
        return self.job.state

    @property
    def is_terminal(self) -> bool:
        return self.job.state in TERMINAL

    @property
    def counted(self) -> int:
        """Attempts that count: hand-outs less those given back."""
        return self.job.attempt - self.returned

    @property
    def exhausted(self) -> bool:
        return self.counted >= max(self.job.max_attempts, 1)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Record)


def encode_record(record: Record) -> bytes:
    return _encoder.encode(record)


def decode_record(data: bytes) -> Record:
    """The record that was stored. Raises `msgspec.DecodeError` for foreign bytes."""
    return _decoder.decode(data)


def public_view(record: Record, **more: Any) -> Raw:
    """The job as JSON for everybody: known members, unknown ones as they were sent, and
    ``more`` that belongs to this one answer."""
    data = _encoder.encode(record.job)
    for part in (record.extra, more):
        if part:
            data = data[:-1] + b"," + _encoder.encode(part)[1:]
    return Raw(data)
