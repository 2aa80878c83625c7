"""Queue settings: paused or not, limits, defaults. A queue exists because somebody named it."""

from __future__ import annotations

from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from penstock.protocols.ojs.fields import Fields
from penstock.protocols.ojs.instants import instant_text
from penstock.protocols.ojs.names import queue_of_token, queue_token
from penstock.protocols.ojs.refusal import Refusal
from penstock.protocols.ojs.retry import DEFAULT_RETRY, RetryPolicy, parse_retry
from penstock.protocols.ojs.table import Table

__all__ = ["INHERITED", "Bound", "QueueConfig", "QueueSettings", "Queues", "parse_queue_config"]

INHERITED: Final = "_default"
_MAX: Final = 10**9


class Bound(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much may wait in a queue; zero is unbounded."""

    max_depth: int = 0
    max_size_bytes: int = 0
    strategy: str = "reject"
    warning_threshold: float = 0.8


class QueueConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a queue says where its jobs do not. ``shown``: the members as they were sent."""

    bound: Bound | None = None
    concurrency: int | None = None
    rate_limit: int | None = None
    rate_period_s: float = 1.0
    visibility_ms: int = 0
    timeout_ms: int = 0
    retry: RetryPolicy | None = None
    keep_s: dict[str, float] = {}
    allowed_types: tuple[str, ...] = ()
    shown: dict[str, Raw] = {}


class QueueSettings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    created_at: str
    paused: bool = False
    paused_at: str = ""
    resumed_at: str = ""
    max_per_second: float | None = None
    config: QueueConfig = QueueConfig()


class Queues:
    """The settings of all queues. ``_default`` is inherited by every queue."""

    def __init__(self, table: Table[QueueSettings]) -> None:
        self.table = table

    def of(self, queue: str) -> QueueSettings | None:
        return self.table.get(queue_token(queue))

    def names(self) -> list[str]:
        return [queue_of_token(token) for token in self.table if token != INHERITED]

    def config(self, queue: str) -> QueueConfig:
        """What holds for a queue: its own words, then the inherited ones."""
        own, base = self.of(queue), self.table.get(INHERITED)
        mine = own.config if own is not None else QueueConfig()
        if base is None:
            return mine
        blank = QueueConfig()
        missing = {
            name: getattr(base.config, name)
            for name in QueueConfig.__struct_fields__
            if name != "shown" and getattr(mine, name) == getattr(blank, name)
        }
        return replace(mine, **missing)

    def is_paused(self, queue: str) -> bool:
        own = self.of(queue)
        return own is not None and own.paused

    async def set_paused(self, queue: str, paused: bool, now: datetime) -> QueueSettings:
        text = instant_text(now)
        when = {"paused_at": text} if paused else {"resumed_at": text}
        return await self._amend(queue, now, lambda q: replace(q, paused=paused, **when))

    async def set_config(self, queue: str, config: QueueConfig, now: datetime) -> QueueSettings:
        """Members that are given replace the old ones, the others stay."""
        blank = QueueConfig()
        given = {
            name: value
            for name in QueueConfig.__struct_fields__
            if name != "shown" and (value := getattr(config, name)) != getattr(blank, name)
        }

        def amended(old: QueueSettings) -> QueueSettings:
            shown = {**old.config.shown, **config.shown}
            return replace(old, config=replace(old.config, **given, shown=shown))

        return await self._amend(queue, now, amended)

    async def set_rate(self, queue: str, per_second: float, now: datetime) -> QueueSettings:
        return await self._amend(queue, now, lambda q: replace(q, max_per_second=per_second))

    async def remove(self, queue: str) -> bool:
        return await self.table.remove(queue_token(queue))

    async def _amend(self, queue: str, now: datetime, change: Any) -> QueueSettings:
        def decide(old: QueueSettings | None) -> QueueSettings:
            start = old or QueueSettings(name=queue, created_at=instant_text(now))
            wanted: QueueSettings = change(start)
            return old if old is not None and wanted == old else wanted

        token = queue if queue == INHERITED else queue_token(queue)
        done = await self.table.change(token, decide)
        assert isinstance(done, QueueSettings)  # it never refuses
        return done


def type_allowed(config: QueueConfig, queue: str, job_type: str) -> Refusal | None:
    """Why jobs of this type may not go into the queue."""
    if not config.allowed_types or any(fnmatchcase(job_type, p) for p in config.allowed_types):
        return None
    return Refusal(
        "job_type_not_allowed",
        f"Queue {queue} does not take jobs of type {job_type}",
        {"queue": queue, "type": job_type, "allowed_job_types": list(config.allowed_types)},
    )


def parse_queue_config(raw: dict[str, Raw]) -> QueueConfig:
    """A configuration as sent by a client. Raises `Refused` naming the member."""
    fields = Fields(raw)
    limit, period = _rate(fields)
    retry = fields.fields("default_retry")
    return QueueConfig(
        bound=_bound(fields),
        concurrency=fields.whole("concurrency", 0, _MAX),
        rate_limit=limit,
        rate_period_s=period,
        visibility_ms=_ms(fields, "visibility_timeout"),
        timeout_ms=_ms(fields, "default_timeout"),
        retry=None if retry is None else parse_retry(retry, DEFAULT_RETRY),
        keep_s=_retention(fields),
        allowed_types=fields.texts("allowed_job_types") or (),
        shown=raw,
    )


def _bound(fields: Fields) -> Bound | None:
    inner = fields.fields("backpressure")
    if inner is not None:
        threshold = inner.number("warning_threshold")
        return Bound(
            max_depth=inner.whole("max_depth", 0, _MAX) or 0,
            max_size_bytes=inner.whole("max_size_bytes", 0) or 0,
            strategy=inner.choice("strategy", ("reject", "block", "drop_oldest")) or "reject",
            warning_threshold=0.8 if threshold is None else min(max(threshold, 0.0), 1.0),
        )
    depth = fields.whole("max_size", 0, _MAX)
    size = fields.whole("max_size_bytes", 0)
    if depth is None and size is None:
        return None
    strategy = fields.choice("overflow_policy", ("reject", "drop_oldest", "block"))
    return Bound(max_depth=depth or 0, max_size_bytes=size or 0, strategy=strategy or "reject")


def _rate(fields: Fields) -> tuple[int | None, float]:
    inner = fields.fields("rate_limit")
    if inner is None:
        return None, 1.0
    limit = inner.whole("limit", 0, _MAX)
    words = {"second": 1.0, "minute": 60.0, "hour": 3600.0}
    word = inner.value("period")
    if isinstance(word, str) and word in words:
        return limit, words[word]
    period = inner.length("period") if isinstance(word, str) else None
    if period is not None and period <= timedelta(0):
        raise inner.bad("period", "must be longer than zero")
    return limit, period.total_seconds() if period is not None else 1.0


def _ms(fields: Fields, name: str) -> int:
    if name not in fields:
        return 0
    if isinstance(fields.value(name), str):
        length = fields.length(name)
        return 0 if length is None else max(round(length.total_seconds() * 1000), 1)
    return (fields.whole(name, 1, 10**9) or 0) * 1000


def _retention(fields: Fields) -> dict[str, float]:
    inner = fields.fields("retention")
    found: dict[str, float] = {}
    for state in ("completed", "discarded", "cancelled"):
        if inner is not None and (length := inner.length(state)) is not None:
            found[state] = length.total_seconds()
    return found


def shown_config(settings: QueueSettings) -> dict[str, Any]:
    return {name: msgspec.json.decode(raw) for name, raw in settings.config.shown.items()}
