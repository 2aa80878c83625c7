"""Questions under way: who waits for which answer, until when, and how many may.

One table and one timer serve every request of a link; a request costs no task and no
timer of its own. A deadline is never early, and late by no more than `GRAIN`, unless the
event loop itself was held up: then answers already received get a moment to be read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from penstock.broker.errors import LinkBusy, LinkError, NoResponders, RequestTimeout

__all__ = ["Reply", "Requests", "Settle", "settle_reply"]

GRAIN = 0.02  # seconds between two sweeps at least, so that many deadlines cost one look
HELD_UP = 0.25  # a sweep this late means the loop was blocked and answers may lie unread
MOMENT = 0.1


class Reply(NamedTuple):
    """An answer: the raw header block (with its ``NATS/1.0`` line) and the payload."""

    headers: bytes | None
    payload: bytes


Settle = Callable[["asyncio.Future[Any]", bytes | None, bytes, LinkError | None], None]
"""Turns an answer (headers, payload) or a failure into the future's result."""

Waiting = tuple["asyncio.Future[Any]", float, Settle, bytes]  # future, deadline, settle, subject


def settle_reply(
    future: asyncio.Future[Any], headers: bytes | None, payload: bytes, error: LinkError | None
) -> None:
    """The plain way: the answer is the result, a failure is raised."""
    if error is None:
        future.set_result(Reply(headers, payload))
    else:
        future.set_exception(error)


class Requests:
    """The table of open requests of one link: ``waiting``, by the token in the reply subject."""

    def __init__(self, prefix: bytes, max_in_flight: int) -> None:
        self.prefix = prefix
        self.max_in_flight = max_in_flight
        self._space: deque[asyncio.Future[None]] = deque()
        self.waiting: dict[bytes, Waiting] = {}
        self._tokens = count(1)
        self._loop = asyncio.get_running_loop()
        self._new_future = partial(asyncio.Future, loop=self._loop)
        self._prefix_bytes = len(prefix)
        self._timer: asyncio.TimerHandle | None = None
        self._next_sweep_at = float("inf")
        self._waited = False  # the moment is given once, a loop that is always late still sweeps

    def add(
        self, subject: bytes, timeout: float, settle: Settle
    ) -> tuple[bytes, asyncio.Future[Any]]:
        """Register a request; gives its reply subject and future. Raises `LinkBusy`."""
        waiting = self.waiting
        if len(waiting) >= self.max_in_flight:
            raise LinkBusy(f"{len(waiting)} requests are already waiting for an answer")
        token = b"%d" % next(self._tokens)
        future: asyncio.Future[Any] = self._new_future()
        deadline = self._loop.time() + timeout
        waiting[token] = (future, deadline, settle, subject)
        if deadline < self._next_sweep_at:
            self._arm(deadline)
        return self.prefix + token, future

    def answered(
        self, subject: bytes, _reply: bytes | None, headers: bytes | None, payload: bytes
    ) -> None:
        """The handler of the reply inbox. Late and unknown answers are dropped."""
        entry = self.waiting.pop(subject[self._prefix_bytes :], None)
        if entry is None:
            return
        if self._space:
            self.wake()
        future, _deadline, settle, asked = entry
        if future.done():
            return
        if headers is not None and headers.startswith(b"NATS/1.0 503"):
            settle(future, None, b"", NoResponders(f"nobody answers on {asked.decode()!r}"))
            return
        settle(future, headers, payload, None)

    def fail_all(self, error: LinkError) -> None:
        """End every open request with ``error``."""
        waiting, self.waiting = self.waiting, {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next_sweep_at = float("inf")
        for future, _deadline, settle, _subject in waiting.values():
            if not future.done():
                settle(future, None, b"", error)
        while self._space:
            self.wake()

    async def changed(self) -> None:
        """Wait until somebody calls `wake` or an answer makes space. Whoever finds more
        space than it needs wakes the next."""
        waiter: asyncio.Future[None] = self._new_future()
        self._space.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done():
                self.wake()
            raise

    def wake(self) -> None:
        """Let the one who waited longest look whether there is space now."""
        while self._space:
            waiter = self._space.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_sweep_at = deadline
        self._timer = self._loop.call_at(deadline, self._sweep)

    def _sweep(self) -> None:
        now = self._loop.time()
        held_up = now - self._next_sweep_at > HELD_UP and not self._waited
        self._waited = held_up
        self._timer = None
        self._next_sweep_at = float("inf")
        if held_up:
            self._arm(now + MOMENT)
            return
        late = [
            token for token, entry in self.waiting.items() if entry[1] <= now or entry[0].done()
        ]
        for token in late:
            future, _deadline, settle, subject = self.waiting.pop(token)
            if not future.done():
                settle(future, None, b"", _timed_out(subject))
        if self.waiting:
            earliest = min(entry[1] for entry in self.waiting.values())
            self._arm(max(earliest, now + GRAIN))
        for _ in late:
            self.wake()


def _timed_out(subject: bytes) -> RequestTimeout:
    return RequestTimeout(f"no answer on {subject.decode(errors='replace')!r} in time")
