"""What workers say: fetch, ack, nack, heartbeat, progress. Read leniently, checked strictly.

A worker may prove that it still holds a job by its id, by the number of the attempt, or by
the fence it was given; whatever it sends must match.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Raw, Struct

from penstock.protocols.ojs.fields import MISSING, Fields, members
from penstock.protocols.ojs.names import JOB_ID, QUEUE_NAME

__all__ = [
    "AckRequest",
    "BeatRequest",
    "ErrorGiven",
    "FetchRequest",
    "Holding",
    "NackRequest",
    "parse_ack",
    "parse_beat",
    "parse_error",
    "parse_fetch",
    "parse_holding",
    "parse_nack",
]

MAX_BACKTRACE_FRAMES: Final = 50
MAX_BACKTRACE_CHARS: Final = 10_000
_MAX_MS: Final = 10**13
_WORKER_STATES: Final = ("running", "quiet", "terminate", "drain")


class Holding(Struct, frozen=True, kw_only=True):
    """What a caller knows of its hold on a job; empty or zero: did not say."""

    worker: str = ""
    attempt: int = 0
    fence: str = ""
    request: str = ""


class ErrorGiven(Struct, frozen=True, kw_only=True):
    """Why an attempt failed, as its worker (or the clock) says."""

    code: str = "handler_error"
    message: str = ""
    type: str = ""
    retryable: bool | None = None
    details: Raw | None = None
    error_class: str = ""
    backtrace: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What ``non_retryable_errors`` is compared with."""
        return tuple(name for name in (self.type, self.error_class, self.code) if name)

    @property
    def shown_type(self) -> str:
        return self.names[0] if self.names else "handler_error"


class FetchRequest(Struct, frozen=True, kw_only=True):
    """``beats``: the worker promises heartbeats, so its first term may be short. ``types``: only
    jobs of these; empty is any. Both are ours."""

    queues: tuple[str, ...]
    count: int = 1
    worker: str = ""
    visibility_ms: int = 0
    wait_ms: int = 0
    runtime: Raw | None = None
    beats: bool = False
    types: tuple[str, ...] = ()


class AckRequest(Struct, frozen=True, kw_only=True):
    job_id: str
    holding: Holding = Holding()
    result: Raw | None = None


class NackRequest(Struct, frozen=True, kw_only=True):
    """``delay_ms`` belongs to a requeue, ``retry_after_ms`` to a retry; ``checkpoint`` and
    ``iteration`` are saved in the same step. All four are ours, ignored by other servers."""

    job_id: str
    holding: Holding = Holding()
    error: ErrorGiven = ErrorGiven()
    requeue: bool = False
    delay_ms: int = 0
    retry_after_ms: int | None = None
    checkpoint: Raw | None = None
    iteration: int | None = None


class BeatRequest(Struct, frozen=True, kw_only=True):
    worker: str
    job_ids: tuple[str, ...] = ()
    active_count: int = 0
    state: str = "running"
    visibility_ms: int = 0
    queues: tuple[str, ...] = ()
    about: dict[str, Raw] = {}


def parse_fetch(raw: Mapping[str, Raw], max_count: int) -> FetchRequest:
    fields = Fields(dict(raw))
    queues = fields.texts("queues", max_items=1000)
    if not queues:
        raise fields.bad("queues", "must name at least one queue")
    for queue in queues:
        if not QUEUE_NAME.fullmatch(queue):
            raise fields.bad("queues", f"{queue[:128]!r} is not a queue name")
    count = fields.whole("count", 1)
    return FetchRequest(
        queues=tuple(dict.fromkeys(queues)),
        count=min(1 if count is None else count, max_count),
        worker=_worker(fields),
        visibility_ms=fields.whole("visibility_timeout_ms", 1, _MAX_MS) or 0,
        wait_ms=fields.whole("wait_ms", 0, 60_000) or 0,
        runtime=fields.object("runtime"),
        beats=fields.flag("heartbeats") or False,
        types=fields.texts("types") or (),
    )


def parse_ack(raw: Mapping[str, Raw], job_id: str = "") -> AckRequest:
    """An ack; ``job_id`` comes from the path where the path has one."""
    fields = Fields(dict(raw))
    return AckRequest(
        job_id=job_id or _job_id(fields), holding=parse_holding(fields), result=raw.get("result")
    )


def parse_nack(raw: Mapping[str, Raw], job_id: str = "") -> NackRequest:
    """A nack. A missing error is ``handler_error`` without a message."""
    fields = Fields(dict(raw))
    error = raw.get("error")
    given = ErrorGiven() if error is None else parse_error(members(error, "error"), "error")
    retry_after = fields.whole("retry_after_ms", 0, _MAX_MS)
    if retry_after is None and given.details is not None:
        details = Fields(members(given.details, "error.details"), "error.details")
        retry_after = details.whole("retry_after_ms", 0, _MAX_MS)
    return NackRequest(
        job_id=job_id or _job_id(fields),
        holding=parse_holding(fields),
        error=given,
        requeue=fields.flag("requeue") or False,
        delay_ms=fields.whole("delay_ms", 0, _MAX_MS) or 0,
        retry_after_ms=retry_after,
        checkpoint=raw.get("checkpoint"),
        iteration=fields.whole("iteration", 0),
    )


def parse_error(raw: Mapping[str, Raw], path: str) -> ErrorGiven:
    fields = Fields(dict(raw), path)
    details = fields.object("details")
    named: Any = MISSING
    if details is not None:
        named = Fields(members(details, f"{path}.details")).value("error_class")
    return ErrorGiven(
        code=_text(fields, "code", 256) or "handler_error",
        message=_text(fields, "message", 100_000) or "",
        type=_text(fields, "type", 256) or "",
        retryable=fields.flag("retryable"),
        details=details,
        error_class=named[:256] if isinstance(named, str) else "",
        backtrace=_backtrace(fields),
    )


def parse_beat(raw: Mapping[str, Raw]) -> BeatRequest:
    """A heartbeat; ``active_jobs`` may be the ids or only their number."""
    fields = Fields(dict(raw))
    worker = _worker(fields)
    if not worker:
        raise fields.bad("worker_id", "is required")
    active = fields.value("active_jobs")
    count = active if isinstance(active, int) and not isinstance(active, bool) else 0
    listed = fields.texts("active_jobs", max_items=10_000) if isinstance(active, list) else None
    ids = listed or fields.texts("active_job_ids", max_items=10_000) or ()
    state = fields.choice("state", _WORKER_STATES) or "running"
    if fields.value("shutdown") is True:
        state = "drain"
    return BeatRequest(
        worker=worker,
        job_ids=tuple(dict.fromkeys(ids)),
        active_count=max(count, len(ids)),
        state=state,
        visibility_ms=fields.whole("visibility_timeout_ms", 1, _MAX_MS) or 0,
        queues=fields.texts("queues") or (),
        about={k: v for k, v in raw.items() if k not in ("worker_id", "active_jobs")},
    )


def _job_id(fields: Fields) -> str:
    found = fields.text("job_id", max_chars=128)
    if not found:
        raise fields.bad("job_id", "is required")
    return found if JOB_ID.fullmatch(found) else found[:64]


def _worker(fields: Fields) -> str:
    return fields.text("worker_id", max_chars=255) or ""


def parse_holding(fields: Fields) -> Holding:
    """What a caller says that proves its hold."""
    return Holding(
        worker=_worker(fields),
        attempt=fields.whole("attempt", 0) or 0,
        fence=fields.text("fence", max_chars=64) or "",
        request=fields.text("request_id", max_chars=64) or "",
    )


def _text(fields: Fields, name: str, max_chars: int) -> str | None:
    """What a handler said: cut rather than refused, since it reports a failure."""
    value = fields.value(name)
    if value is MISSING or value is None:
        return None
    return (value if isinstance(value, str) else str(value))[:max_chars]


def _backtrace(fields: Fields) -> tuple[str, ...]:
    value = fields.value("backtrace")
    lines = value.splitlines() if isinstance(value, str) else value
    if not isinstance(lines, list):
        return ()
    kept: list[str] = []
    room = MAX_BACKTRACE_CHARS
    for line in lines[:MAX_BACKTRACE_FRAMES]:
        text = str(line)[:room]
        room -= len(text)
        kept.append(text)
        if room <= 0:
            break
    return tuple(kept)
