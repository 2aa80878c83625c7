"""Rate limits as pure values of time: how many now, and if none, when.

``now`` is a number of seconds from any steady clock. A clock that steps back gives nothing
away and takes nothing away.
"""

from __future__ import annotations

from collections import deque

from penstock.core.errors import ConfigError

__all__ = ["SlidingWindow", "TokenBucket"]


class TokenBucket:
    """On average ``per_second``, and at most ``burst`` at once. Starts full."""

    __slots__ = ("_at", "_tokens", "burst", "per_second")

    def __init__(self, per_second: float, burst: float) -> None:
        if per_second <= 0 or burst < 1:
            raise ConfigError(
                f"a bucket of {burst:g} with {per_second:g} per second lets nothing through",
                remedy="give a rate above 0 and a burst of 1 or more",
            )
        self.per_second, self.burst = per_second, burst
        self._tokens = float(burst)
        self._at: float | None = None

    def take(self, now: float, count: int = 1) -> bool:
        """Take ``count`` if there are as many, or nothing at all."""
        if self._refilled(now) < count:
            return False
        self._tokens -= count
        return True

    def available(self, now: float) -> int:
        return int(self._refilled(now))

    def wait(self, now: float, count: int = 1) -> float:
        """Seconds until ``count`` can be taken; infinite above the burst."""
        if count > self.burst:
            return float("inf")
        return max(0.0, (count - self._refilled(now)) / self.per_second)

    def _refilled(self, now: float) -> float:
        if self._at is None:
            self._at = now
        if now > self._at:
            self._tokens = min(self.burst, self._tokens + (now - self._at) * self.per_second)
            self._at = now
        return self._tokens


class SlidingWindow:
    """At most ``limit`` within any ``seconds``, exactly. Memory grows with ``limit`` only."""

    __slots__ = ("_taken", "limit", "seconds")

    def __init__(self, limit: int, seconds: float) -> None:
        if limit < 1 or seconds <= 0:
            raise ConfigError(
                f"a window of {limit} per {seconds:g} s lets nothing through",
                remedy="give a limit of 1 or more and a length above 0",
            )
        self.limit, self.seconds = limit, seconds
        self._taken: deque[float] = deque()

    def take(self, now: float) -> bool:
        """Take one if the window has room."""
        now = self._steady(now)
        if len(self._taken) >= self.limit:
            return False
        self._taken.append(now)
        return True

    def wait(self, now: float) -> float:
        """Seconds until one can be taken."""
        now = self._steady(now)
        if len(self._taken) < self.limit:
            return 0.0
        return max(0.0, self._taken[0] + self.seconds - now)

    def _steady(self, now: float) -> float:
        if self._taken:
            now = max(now, self._taken[-1])
        while self._taken and self._taken[0] + self.seconds <= now:
            self._taken.popleft()
        return now
