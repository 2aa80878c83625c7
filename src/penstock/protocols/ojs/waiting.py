"""Waiting for work: fetches that found nothing and are told when something may be there."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

__all__ = ["Bells"]


class Bells:
    """One bell per queue; a ring wakes everybody who waits for it."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    def ring(self, queue: str) -> None:
        for event in self._waiting.get(queue, ()):
            event.set()

    def ring_all(self) -> None:
        for events in self._waiting.values():
            for event in events:
                event.set()

    def open(self, queues: Iterable[str]) -> Ear:
        """Listen from now on: what rings before `Ear.wait` is not missed."""
        return Ear(self, tuple(queues))

    def enter(self, queue: str, event: asyncio.Event) -> None:
        self._waiting[queue].add(event)

    def leave(self, queue: str, event: asyncio.Event) -> None:
        events = self._waiting.get(queue)
        if events is not None:
            events.discard(event)
            if not events:
                del self._waiting[queue]


class Ear:
    def __init__(self, bells: Bells, queues: tuple[str, ...]) -> None:
        self._bells = bells
        self._queues = queues
        self._event = asyncio.Event()

    def __enter__(self) -> Ear:
        for queue in self._queues:
            self._bells.enter(queue, self._event)
        return self

    def __exit__(self, *_: object) -> None:
        for queue in self._queues:
            self._bells.leave(queue, self._event)

    async def wait(self, seconds: float) -> bool:
        """Whether it rang within ``seconds``."""
        try:
            async with asyncio.timeout(max(seconds, 0)):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
