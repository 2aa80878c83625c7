"""Watching keys: the values there are now, then every change, in the order of their revisions."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from penstock.broker.entry import Entry, entry_of
from penstock.broker.follower import Follower

__all__ = ["Watch"]

_BATCH = 512
_LONG = 30.0


class Watch:
    """Asynchronous iterator of `Entry`, made by ``Bucket.watch``; ends at `stop`.

    `ready` is set once the values that stood when the watch began have been handed out (at
    once when there were none). After a reconnect it goes on where it was; a key that changed
    several times in between may, with history 1, be seen in its last state only.
    """

    def __init__(self, follower: Follower, prefix_bytes: int, *, ignore_deletes: bool) -> None:
        self._follower = follower
        self._prefix_bytes = prefix_bytes
        self._ignore_deletes = ignore_deletes
        self._waiting: list[Entry] = []  # newest first: taken from the end
        self._stopped = False
        self.ready = asyncio.Event()
        self._note_progress()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry:
        while not self._waiting:
            if self._stopped:
                raise StopAsyncIteration
            await self._fill(_LONG)
        entry = self._waiting.pop()
        self._note_progress()
        return entry

    async def initial(self) -> list[Entry]:
        """All values that stood when the watch began, without waiting for changes."""
        entries: list[Entry] = []
        while not self.ready.is_set() and not self._stopped:
            if not self._waiting:
                await self._fill(1.0)
            entries.extend(reversed(self._waiting))
            self._waiting.clear()
            self._note_progress()
        return entries

    async def next(self, timeout: float) -> Entry | None:
        """The next entry, or None when there was none within ``timeout`` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not self._waiting and not self._stopped and (left := deadline - loop.time()) > 0:
            await self._fill(left)
        if not self._waiting:
            return None
        entry = self._waiting.pop()
        self._note_progress()
        return entry

    async def stop(self) -> None:
        """End the watch; an iteration under way ends too. Safe to repeat."""
        self._stopped = True
        self._waiting.clear()
        await self._follower.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _fill(self, wait: float) -> None:
        messages = await self._follower.fetch(_BATCH, wait)
        entries = [entry_of(message, self._prefix_bytes) for message in messages]
        if self._ignore_deletes:
            entries = [entry for entry in entries if not entry.deleted]
        entries.reverse()
        self._waiting = entries
        self._note_progress()

    def _note_progress(self) -> None:
        if not self._waiting and self._follower.caught_up:
            self.ready.set()
