"""A shelf: keys in order, cheap to add, to take away, and to read from any place on.

Priorities, due times and listings are all "what comes next in this order", so one structure
serves them: sorted chunks, found by bisection. A key costs one tuple and one pointer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

__all__ = ["Shelf"]

_MAX_CHUNK: Final = 512

K = TypeVar("K", bound=tuple[Any, ...])


class Shelf(Generic[K]):
    """A sorted set of tuples. Adding what is there, or removing what is not, changes nothing."""

    __slots__ = ("_chunks", "_count", "_lasts")

    def __init__(self) -> None:
        self._chunks: list[list[K]] = []
        self._lasts: list[K] = []  # the last key of each chunk: where bisection starts
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[K]:
        for chunk in self._chunks:
            yield from chunk

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, tuple):
            return False
        place = bisect_left(self._lasts, key)
        return place < len(self._lasts) and key in self._chunks[place]

    @property
    def first(self) -> K | None:
        return self._chunks[0][0] if self._chunks else None

    @property
    def last(self) -> K | None:
        return self._lasts[-1] if self._lasts else None

    def add(self, key: K) -> bool:
        """Put ``key`` in its place; whether it was not there yet."""
        if not self._chunks:
            self._chunks.append([key])
            self._lasts.append(key)
            self._count = 1
            return True
        place = min(bisect_left(self._lasts, key), len(self._lasts) - 1)
        chunk = self._chunks[place]
        at = bisect_left(chunk, key)
        if at < len(chunk) and chunk[at] == key:
            return False
        insort(chunk, key, lo=at)
        self._lasts[place] = chunk[-1]
        self._count += 1
        if len(chunk) > _MAX_CHUNK:
            self._split(place)
        return True

    def remove(self, key: K) -> bool:
        """Take ``key`` away; whether it was there."""
        place = bisect_left(self._lasts, key)
        if place == len(self._lasts):
            return False
        chunk = self._chunks[place]
        at = bisect_left(chunk, key)
        if chunk[at] != key:
            return False
        del chunk[at]
        self._count -= 1
        if not chunk:
            del self._chunks[place]
            del self._lasts[place]
        else:
            self._lasts[place] = chunk[-1]
        return True

    def after(self, key: K | None = None) -> Iterator[K]:
        """Keys greater than ``key`` (all without it), in order; change nothing meanwhile."""
        if key is None:
            yield from self
            return
        place = bisect_right(self._lasts, key)
        if place == len(self._lasts):
            return
        yield from self._chunks[place][bisect_right(self._chunks[place], key) :]
        for chunk in self._chunks[place + 1 :]:
            yield from chunk

    def before(self, key: K | None = None) -> Iterator[K]:
        """Keys less than ``key`` (all without it), greatest first."""
        if key is None:
            place, at = len(self._chunks), 0
        else:
            place = bisect_left(self._lasts, key)
            at = bisect_left(self._chunks[place], key) if place < len(self._chunks) else 0
        if at:
            yield from reversed(self._chunks[place][:at])
        for chunk in reversed(self._chunks[:place]):
            yield from reversed(chunk)

    def clear(self) -> None:
        self._chunks.clear()
        self._lasts.clear()
        self._count = 0

    def _split(self, place: int) -> None:
        chunk = self._chunks[place]
        # Most keys come in rising order: leave the left part full then, or half of it is air.
        grows_at_end = place == len(self._chunks) - 1
        cut = _MAX_CHUNK if grows_at_end else len(chunk) // 2
        right = chunk[cut:]
        del chunk[cut:]
        self._chunks.insert(place + 1, right)
        self._lasts[place] = chunk[-1]
        self._lasts.insert(place + 1, right[-1])
