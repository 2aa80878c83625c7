"""One timer for everything that is due: timeouts, heartbeats, nudges.

Instead of a timer per job there is one sweep over what runs now, at the earliest instant
that anything is due. A job that ends before then costs two set operations and no timer;
an idle ticker costs nothing at all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from math import inf
from typing import Protocol

__all__ = ["Ticker", "Ticking", "stopwatch"]

_log = logging.getLogger("penstock.runtime")

_AFTER_FAULT_S = 1.0
_GRAIN_S = 0.02  # sweeps are at least this far apart: bounds the cost with thousands of entries

if hasattr(time, "CLOCK_BOOTTIME"):

    def stopwatch() -> float:
        """Seconds that also pass while the machine sleeps: a lease does not wait for a laptop."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # pragma: no cover - other systems

    def stopwatch() -> float:
        """Seconds on a clock that never goes back."""
        return time.monotonic()


class Ticking(Protocol):
    """Something with a next instant. ``tick`` acts and moves ``due`` on (``inf``: never again)."""

    due: float

    def tick(self, now: float) -> None: ...


class Ticker:
    """Calls ``tick`` of each entry once it is due, at most one grain late."""

    def __init__(
        self, clock: Callable[[], float] = stopwatch, *, grain_s: float = _GRAIN_S
    ) -> None:
        self._clock = clock
        self._grain_s = grain_s
        self._entries: set[Ticking] = set()
        self._armed_for = inf
        self._handle: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Ticking) -> None:
        self._entries.add(entry)
        if entry.due < self._armed_for:
            self._arm(entry.due)

    def discard(self, entry: Ticking) -> None:
        self._entries.discard(entry)

    def moved(self, entry: Ticking) -> None:
        """Tell that ``entry.due`` came nearer outside its own tick."""
        if entry.due < self._armed_for:
            self._arm(entry.due)

    def sweep(self) -> None:
        """Tick everything that is due now, and arm for what is next."""
        now = self._clock()
        self._disarm()
        for entry in [e for e in self._entries if e.due <= now]:
            if entry in self._entries:  # an earlier tick of this sweep may have ended it
                self._tick(entry, now)
        next_due = min((e.due for e in self._entries), default=inf)
        if next_due < inf:
            self._arm(max(next_due, now + self._grain_s))

    def _tick(self, entry: Ticking, now: float) -> None:
        try:
            entry.tick(now)
        except Exception:  # noqa: BLE001 - the leases of all others hang on this timer
            _log.exception("a tick failed")
            entry.due = max(entry.due, now + _AFTER_FAULT_S)

    def stop(self) -> None:
        self._disarm()
        self._entries.clear()

    def _arm(self, due: float) -> None:
        self._disarm()
        self._armed_for = due
        delay = max(due - self._clock(), 0)
        self._handle = asyncio.get_running_loop().call_later(delay, self.sweep)

    def _disarm(self) -> None:
        self._armed_for = inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
