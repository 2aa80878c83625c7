"""Instants and lengths of time as Open Job Spec writes them.

Out: RFC 3339, UTC, milliseconds, ``Z``. In: any RFC 3339 with a zone, or an ISO 8601
duration; where the cases allow it, an instant relative to now (``+PT2S``). What cannot be
read raises `ValueError` with a sentence, and the caller says which field it was.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

__all__ = ["duration", "duration_text", "in_ms", "instant", "instant_text", "of_ms", "order_of"]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MAX_DURATION: Final = timedelta(days=365_000)
_MS: Final = timedelta(milliseconds=1)
_US: Final = timedelta(microseconds=1)
_LAST: Final = datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)

_RFC3339: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})"
)
_DURATION: Final = re.compile(
    r"P(?=.)(?:(?P<y>\d+)Y)?(?:(?P<mo>\d+)M)?(?:(?P<w>\d+)W)?(?:(?P<d>\d+(?:\.\d+)?)D)?"
    r"(?:T(?=\d)(?:(?P<h>\d+(?:\.\d+)?)H)?(?:(?P<m>\d+(?:\.\d+)?)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?"
)
_SECONDS: Final = {
    "y": 365 * 86400.0, "mo": 30 * 86400.0, "w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0,
    "s": 1.0,
}  # fmt: skip
_SHORT: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SHORT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def instant_text(at: datetime) -> str:
    """``at`` as every timestamp leaves the server.

    >>> instant_text(datetime(2026, 2, 12, 10, 30, 0, 123456, tzinfo=UTC))
    '2026-02-12T10:30:00.123Z'
    """
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def instant(text: str, now: datetime | None = None) -> datetime:
    """The instant that ``text`` names; ``+PT2S`` counts from ``now`` where that is given."""
    if now is not None and text.startswith("+"):
        try:
            return now + duration(text[1:])
        except OverflowError:
            return _LAST
    if not _RFC3339.fullmatch(text):
        raise ValueError("is not an RFC 3339 time with a zone, like 2026-02-12T10:30:00Z")
    if text[17:19] == "60":
        raise ValueError("names a leap second, which cannot be kept")
    try:
        return datetime.fromisoformat(_microseconds(text).upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"is not a time: {error}") from error


def _microseconds(text: str) -> str:
    """Cut what is finer than a microsecond: `datetime` would refuse it."""
    return re.sub(r"(\.\d{6})\d+", r"\1", text)


@lru_cache(maxsize=1024)
def duration(text: str) -> timedelta:
    """The length of time that ``text`` says: ISO 8601, or short forms like ``90s``, ``250ms``.

    >>> duration("PT1M30S")
    datetime.timedelta(seconds=90)
    """
    found = _DURATION.fullmatch(text)
    if found is not None and any(found.groups()):
        seconds = sum(float(v) * _SECONDS[k] for k, v in found.groupdict().items() if v)
    elif text and not _SHORT.sub("", text):
        seconds = sum(float(number) * _SHORT_SECONDS[unit] for number, unit in _SHORT.findall(text))
    else:
        raise ValueError("is not an ISO 8601 duration, like PT30S")
    if seconds > MAX_DURATION.total_seconds():
        raise ValueError("is longer than a thousand years")
    return timedelta(seconds=seconds)


def duration_text(length: timedelta) -> str:
    """``length`` in ISO 8601, in seconds.

    >>> duration_text(timedelta(minutes=5))
    'PT300S'
    """
    seconds, rest = divmod(length, timedelta(seconds=1))
    fraction = f"{rest / _US / 1e6:.6f}"[1:].rstrip("0").rstrip(".")
    return f"PT{seconds}{fraction}S"


def in_ms(at: datetime) -> int:
    """``at`` in whole milliseconds of Unix time, never earlier than it was."""
    return -((EPOCH - at) // _MS)


def of_ms(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def order_of(at: datetime) -> int:
    """``at`` in microseconds of Unix time: what orders jobs of one priority."""
    return (at - EPOCH) // _US
