"""Quiet: waiting until nothing is in hand any more, or time is up, or somebody is in a hurry."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

__all__ = ["Quiet"]


class Quiet:
    """Watches one collection of things in hand; `look` is told after each that ended."""

    def __init__(self, in_hand: Collection[object]) -> None:
        self._in_hand = in_hand
        self._waiter: asyncio.Future[None] | None = None
        self._hurry = False

    @property
    def hurried(self) -> bool:
        return self._hurry

    def look(self) -> None:
        if self._waiter is not None and not self._in_hand:
            self._wake()

    def hurry(self) -> None:
        """End the present wait, and every later one that may be hurried."""
        self._hurry = True
        self._wake()

    async def wait(self, seconds: float, *, patient: bool = False) -> bool:
        """Whether nothing was left in hand in time. ``patient``: even in a hurry."""
        if self._in_hand and (patient or not self._hurry):
            self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._waiter], timeout=seconds)
            self._waiter = None
        return not self._in_hand

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
