"""Rate limits: what a job may ask for, and how starts are counted against it.

``max_per_second`` limits the job's queue; ``concurrency``, ``rate`` and ``throttle`` limit
everything that shares the ``key``. Time comes in as an argument; granting and counting is
one step here, and whoever owns the key takes that step.
"""

from __future__ import annotations

import re
from collections import deque
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from msgspec import Struct

from penstock.protocols.ojs.fields import MISSING, Fields

__all__ = ["RateLimit", "Starts", "parse_rate_limit"]

KEY: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]{0,254}", re.ASCII)
_PERIODS: Final = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
OnLimit = Literal["wait", "reschedule", "drop"]
_MAX: Final = 10**9


class RateLimit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``None`` means no limit of that kind; ``concurrency`` 0 stops the key."""

    key: str = ""
    max_per_second: float | None = None
    concurrency: int | None = None
    rate_limit: int | None = None
    rate_period_s: float = 1.0
    throttle_limit: int | None = None
    throttle_period_s: float = 1.0
    on_limit: OnLimit = "wait"


def parse_rate_limit(fields: Fields) -> RateLimit:
    """The policy in ``options.rate_limit``. Raises `Refused` naming the member."""
    key = fields.name("key", KEY, f"must match {KEY.pattern}")
    concurrency = fields.whole("concurrency", 0, _MAX)
    rate, rate_period = _limit_and_period(fields, "rate")
    throttle, throttle_period = _limit_and_period(fields, "throttle")
    if key is None and (concurrency, rate, throttle) != (None, None, None):
        raise fields.bad("key", "is required with concurrency, rate or throttle")
    per_second = fields.number("max_per_second")
    if per_second is not None and not 0 < per_second <= _MAX:
        raise fields.bad("max_per_second", "must be above zero")
    strategy: Any = fields.choice("on_limit", ("wait", "reschedule", "drop"))
    return RateLimit(
        key=key or "",
        max_per_second=per_second,
        concurrency=concurrency,
        rate_limit=rate,
        rate_period_s=rate_period,
        throttle_limit=throttle,
        throttle_period_s=throttle_period,
        on_limit=strategy or "wait",
    )


class Starts:
    """Starts within a sliding window: never more than ``limit`` in any ``period``."""

    __slots__ = ("_at", "limit", "period")

    def __init__(self, limit: int, period: timedelta) -> None:
        self.limit = limit
        self.period = period
        self._at: deque[datetime] = deque()

    def count(self, now: datetime) -> int:
        while self._at and self._at[0] <= now - self.period:
            self._at.popleft()
        return len(self._at)

    def next_at(self, now: datetime) -> datetime | None:
        """When one more may start; ``now`` if at once, ``None`` if never."""
        if self.limit <= 0:
            return None
        free = self.limit - self.count(now)
        return now if free > 0 else self._at[-self.limit] + self.period

    def take(self, now: datetime) -> bool:
        """Count one start if it is allowed."""
        if self.count(now) >= self.limit:
            return False
        self._at.append(now)
        return True

    def note(self, at: datetime) -> None:
        """Count a start that happened elsewhere; order does not matter."""
        self._at.append(at)
        if len(self._at) > 1 and self._at[-2] > at:
            self._at = deque(sorted(self._at))


def _limit_and_period(fields: Fields, name: str) -> tuple[int | None, float]:
    """``{limit, period}``, or a plain number beside a ``period`` that is a word or a duration."""
    value = fields.value(name)
    if value is MISSING:
        return None, 1.0
    if isinstance(value, dict):
        inner = fields.fields(name)
        assert inner is not None  # it is a member, and an object
        limit = inner.whole("limit", 0, _MAX)
        if limit is None:
            raise inner.bad("limit", "is required")
        return limit, _period(inner)
    return fields.whole(name, 0, _MAX), _period(fields)


def _period(fields: Fields) -> float:
    word = fields.value("period")
    if word is MISSING:
        return 1.0
    if isinstance(word, str) and word in _PERIODS:
        return _PERIODS[word]
    length = fields.length("period")
    if length is None or length <= timedelta(0):
        raise fields.bad("period", "must be longer than zero")
    return length.total_seconds()
