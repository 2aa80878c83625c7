"""Cron: when a schedule fires, in the time zone people mean, on every machine the same.

Five fields (minute, hour, day, month, weekday), names, ranges, steps, ``L``, ``LW`` and ``#``, the
usual ``@daily`` words, and ``@every 1h30m``. Where both day fields are restricted either may
match, as in classic cron.

Clock changes: a schedule bound to hours (``30 2 * * *``) names times on the wall clock. One that
does not exist that day is skipped, one that happens twice fires the first time only. A
schedule for every hour (``*/15 * * * *``) keeps firing through both, in real time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from penstock.core.errors import ConfigError

__all__ = ["CronSchedule", "Misfire", "fire_id", "jitter_of", "to_fire", "zone_of"]

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_GO_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_GO_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SHORTEST: Final = timedelta(seconds=1)
_LONGEST: Final = timedelta(days=3660)
_EVERY_HOUR: Final = frozenset({"*", "*/1", "0-23"})
_WIDEST_FOLD: Final = timedelta(days=2)  # clocks were never set back further than this


class Misfire(StrEnum):
    """What to do with instants that passed while nobody was there to fire them."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """``expression`` as it was written. ``anchor`` is where ``@every`` counts from."""

    expression: str
    zone: str = "UTC"
    anchor: datetime = _EPOCH

    @classmethod
    def parse(
        cls, expression: str, zone: str = "UTC", anchor: datetime | None = None
    ) -> CronSchedule:
        """Check a schedule. Raises `ConfigError` for one that cannot be read or never fires."""
        zone_of(zone)
        schedule = cls(expression, zone, (anchor or _EPOCH).replace(microsecond=0))
        if schedule.period is None:
            _check_fields(expression, schedule.fields)
            if schedule.next_after(_EPOCH + timedelta(days=366 * 50)) is None:
                raise _unreadable(expression, "it never fires")
        return schedule

    @property
    def fields(self) -> str:
        """The five fields, words replaced."""
        text = self.expression.strip()
        return MACROS.get(text.lower(), text)

    @property
    def period(self) -> timedelta | None:
        """The length of an ``@every`` schedule, else ``None``."""
        word, _, rest = self.expression.strip().partition(" ")
        return _go_length(self.expression, rest.strip()) if word.lower() == "@every" else None

    def next_after(self, after: datetime) -> datetime | None:
        """The first instant later than ``after``, in UTC."""
        period = self.period
        if period is not None:
            passed = (after - self.anchor) // period
            return max(self.anchor + (passed + 1) * period, self.anchor + period)
        return next(self._instants(after), None)

    def previous(self, before: datetime) -> datetime | None:
        """The last instant earlier than ``before``, in UTC."""
        period = self.period
        if period is None:
            return next(self._instants_back(before), None)
        count = -((self.anchor - before) // period) - 1
        return self.anchor + count * period if count > 0 else None

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Every instant in ``(after, until]``, oldest first."""
        at = self.next_after(after)
        while at is not None and at <= until:
            yield at
            at = self.next_after(at)

    def skipped(self, after: datetime, until: datetime) -> list[datetime]:
        """Wall-clock times in between that do not exist because the clock was set forward."""
        if self.period is not None or not self._by_the_clock:
            return []
        zone = zone_of(self.zone)
        end = until.astimezone(zone).replace(tzinfo=None)
        begin = after.astimezone(zone).replace(tzinfo=None)
        times = iter(CronSim(self.fields, begin))
        found = []
        for local in times:
            if local > end:
                break
            if not _exists(local, zone):
                found.append(local)
        return found

    @property
    def _by_the_clock(self) -> bool:
        return self.fields.split()[1] not in _EVERY_HOUR

    def _instants(self, after: datetime) -> Iterator[datetime]:
        zone = zone_of(self.zone)
        if not self._by_the_clock:
            yield from (at.astimezone(UTC) for at in CronSim(self.fields, after.astimezone(zone)))
            return
        for local in CronSim(self.fields, after.astimezone(zone).replace(tzinfo=None)):
            at = local.replace(tzinfo=zone).astimezone(UTC)
            if at > after and _exists(local, zone):
                yield at

    def _instants_back(self, before: datetime) -> Iterator[datetime]:
        zone = zone_of(self.zone)
        if not self._by_the_clock:
            start = before.astimezone(zone)
            times = CronSim(self.fields, start, reverse=True)
            yield from (at.astimezone(UTC) for at in times if at < before)
            return
        later = (before.astimezone(zone) + _WIDEST_FOLD).replace(tzinfo=None)
        for local in CronSim(self.fields, later, reverse=True):
            at = local.replace(tzinfo=zone).astimezone(UTC)
            if at < before and _exists(local, zone):
                yield at


def zone_of(name: str) -> ZoneInfo:
    """The zone called ``name`` in the IANA database. Offsets and abbreviations are refused:
    they do not say when the clock changes."""
    if name == "UTC" or "/" in name:
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass
    raise ConfigError(
        f"{name[:80]!r} is not a time zone",
        remedy="give an IANA name like Europe/Berlin, or UTC",
        code="cron.zone",
    )


def to_fire(
    schedule: CronSchedule,
    last: datetime,
    now: datetime,
    misfire: Misfire,
    *,
    grace: timedelta = timedelta(seconds=60),
    limit: int = 1000,
) -> list[datetime]:
    """The instants in ``(last, now]`` that fire now, oldest first.

    What is no older than ``grace`` is on time and fires under every policy; of what is older,
    ``skip`` drops all, ``once`` keeps the newest unless a later one is on time, ``all`` keeps
    the newest ``limit``.
    """
    newest = _newest(schedule, last, now, limit)
    on_time = [at for at in newest if at > now - grace]
    match misfire:
        case Misfire.SKIP:
            return on_time
        case Misfire.ONCE:
            return on_time or newest[-1:]
        case _:
            return newest


def jitter_of(name: str, nominal: datetime, most: timedelta) -> timedelta:
    """How much later than ``nominal`` to fire: spread over ``most``, the same on every machine."""
    digest = hashlib.blake2b(fire_id(name, nominal).encode(), digest_size=8).digest()
    return most * (int.from_bytes(digest, "big") / 2**64)


def fire_id(name: str, nominal: datetime) -> str:
    """Name one firing of a schedule, the same on every machine.

    >>> fire_id("nightly", datetime(2027, 3, 28, 1, 0, tzinfo=UTC))
    'nightly@20270328T010000Z'
    """
    if nominal.tzinfo is None:
        raise ValueError("the nominal instant needs a time zone")
    return f"{name}@{nominal.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _newest(schedule: CronSchedule, last: datetime, now: datetime, limit: int) -> list[datetime]:
    """Up to ``limit`` instants in ``(last, now]``, found from the end: a long absence costs
    no more than a short one."""

    def backwards() -> Iterator[datetime]:
        at = schedule.previous(now + timedelta(microseconds=1))
        while at is not None and at > last:
            yield at
            at = schedule.previous(at)

    return list(islice(backwards(), limit))[::-1]


def _exists(local: datetime, zone: ZoneInfo) -> bool:
    there = local.replace(tzinfo=zone).astimezone(UTC)
    return there.astimezone(zone).replace(tzinfo=None) == local


def _check_fields(expression: str, fields: str) -> None:
    count = len(fields.split())
    if fields.startswith("@"):
        raise _unreadable(expression, "the word is not known")
    if count != 5:
        raise _unreadable(expression, f"it has {count} fields, not 5")
    try:
        CronSim(fields, _EPOCH)
    except (CronSimError, AssertionError, ValueError, IndexError) as error:
        raise _unreadable(expression, str(error) or "a field cannot be read") from error


def _go_length(expression: str, text: str) -> timedelta:
    parts = _GO_PART.findall(text)
    if not parts or _GO_PART.sub("", text):
        raise _unreadable(expression, "write the length like 90s, 15m or 1h30m")
    seconds = sum(float(number) * _GO_UNITS[unit] for number, unit in parts)
    if not _SHORTEST.total_seconds() <= seconds <= _LONGEST.total_seconds():
        raise _unreadable(expression, "the length is from one second to ten years")
    return timedelta(seconds=seconds)


def _unreadable(expression: str, why: str) -> ConfigError:
    return ConfigError(
        f"{expression[:120]!r} is not a schedule: {why}",
        remedy="use five fields like '0 9 * * 1-5', a word like @daily, or '@every 15m'",
        code="cron.expression",
    )
