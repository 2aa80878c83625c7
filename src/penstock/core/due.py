"""Due times: what is due next, by key, at a cost that does not grow with what is stored.

Adding, moving and removing cost O(log n) (removing amortised); times may be of any type that
has an order, such as ``datetime`` or epoch milliseconds, but of one type per heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

__all__ = ["DueHeap", "Instant"]


class Instant(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...
    def __le__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Instant)

_MIN_STALE: Final = 64


class DueHeap(Generic[K, T]):
    """Keys with the time at which each is due; equal times come out in the order of adding."""

    def __init__(self) -> None:
        self._heap: list[tuple[T, int, K]] = []
        self._live: dict[K, tuple[T, int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: object) -> bool:
        return key in self._live

    def __iter__(self) -> Iterator[K]:
        return iter(self._live)

    def put(self, key: K, at: T) -> None:
        """Make ``key`` due at ``at``, instead of whenever it was due before."""
        self._count += 1
        self._live[key] = (at, self._count)
        heapq.heappush(self._heap, (at, self._count, key))
        self._shed()

    def remove(self, key: K) -> bool:
        """Forget ``key``; whether it was there."""
        if self._live.pop(key, None) is None:
            return False
        self._shed()
        return True

    def at(self, key: K) -> T | None:
        """When ``key`` is due, or ``None`` if it is not here."""
        entry = self._live.get(key)
        return None if entry is None else entry[0]

    @property
    def next_at(self) -> T | None:
        """The earliest time at which something is due, or ``None`` when empty."""
        self._drop_stale_tops()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: T, most: int | None = None) -> list[K]:
        """Take out what is due at ``now``, earliest first, up to ``most`` keys."""
        due: list[K] = []
        while most is None or len(due) < most:
            self._drop_stale_tops()
            if not self._heap or not self._heap[0][0] <= now:
                break
            key = heapq.heappop(self._heap)[2]
            del self._live[key]
            due.append(key)
        return due

    def clear(self) -> None:
        self._heap.clear()
        self._live.clear()

    def _drop_stale_tops(self) -> None:
        while self._heap and not self._is_live(self._heap[0]):
            heapq.heappop(self._heap)

    def _is_live(self, entry: tuple[T, int, K]) -> bool:
        kept = self._live.get(entry[2])
        return kept is not None and kept[1] == entry[1]

    def _shed(self) -> None:
        """Rebuild once stale entries outnumber the live ones, so that memory stays bounded."""
        stale = len(self._heap) - len(self._live)
        if stale > _MIN_STALE and stale > len(self._live):
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapq.heapify(self._heap)
