"""Threads for sync handlers: a bounded pool whose results come back to the event loop.

The threads are daemons on purpose: a handler that cannot be stopped must not keep the
process from ending. Context variables of the run are kept, and what a handler asks of its
context crosses over to the loop's thread by itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Generator
from queue import SimpleQueue
from typing import Any

from penstock.core.context import Backchannel, LeaseLost
from penstock.core.delivery import Progress

__all__ = ["Crossing", "ThreadCall", "Threads"]

_SAVE_WITHIN_S = 60.0


class ThreadCall:
    """One function on its way through a thread. ``ended`` once no thread runs it any more.

    ``queued``: no thread was free for it when it was entered; then `on_start` tells when one is.
    """

    __slots__ = (
        "_context",
        "_loop",
        "_waiter",
        "_work",
        "abandoned",
        "ended",
        "on_end",
        "on_start",
        "queued",
    )

    def __init__(self, work: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self._waiter: asyncio.Future[Any] = loop.create_future()
        self._context = contextvars.copy_context()
        self.abandoned = False
        self.queued = False
        self.ended = False
        self.on_start: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None

    async def wait(self) -> Any:
        return await self._waiter

    def abandon(self) -> None:
        """Not to be started any more; what runs already runs on."""
        self.abandoned = True

    def run(self) -> None:
        """Called by the thread."""
        value: Any = None
        error: BaseException | None = None
        if not self.abandoned:
            try:
                if self.queued:
                    self._loop.call_soon_threadsafe(self._begin)
                value = self._context.run(self._work)
            except BaseException as raised:  # noqa: BLE001 - carried over to the waiting run
                error = raised
        try:
            self._loop.call_soon_threadsafe(self._finish, value, error)
        except RuntimeError:
            return  # the loop is closed: nobody waits

    def _begin(self) -> None:
        if self.on_start is not None and not self.abandoned:
            self.on_start()

    def _finish(self, value: Any, error: BaseException | None) -> None:
        self.ended = True
        if not self._waiter.done():
            if error is None:
                self._waiter.set_result(value)
            else:
                self._waiter.set_exception(_carried(error))
        if self.on_end is not None:
            self.on_end()


class Threads:
    """At most ``size`` threads, started when needed, ended by `stop`."""

    def __init__(self, size: int, name: str = "penstock") -> None:
        self._size = size
        self._name = name
        self._queue: SimpleQueue[ThreadCall | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._lock = threading.Lock()
        self._stopped = False

    def submit(self, work: Callable[[], Any]) -> ThreadCall:
        """Run ``work`` in a thread; call on the loop's thread."""
        call = ThreadCall(work, asyncio.get_running_loop())
        self.enter(call)
        return call

    def enter(self, call: ThreadCall) -> None:
        """Put a call in line for the next free thread."""
        with self._lock:
            busy, full = self._queue.qsize() >= self._idle, len(self._threads) >= self._size
            call.queued = busy and full
            self._queue.put(call)
        if busy and not full:
            name = f"{self._name}-{len(self._threads) + 1}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Let idle threads end. Those that run a handler end after it."""
        if not self._stopped:
            self._stopped = True
            for _ in self._threads:
                self._queue.put(None)

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            call = self._queue.get()
            with self._lock:
                self._idle -= 1
            if call is None:
                return
            call.run()
            del call  # a waiting thread must not keep the last job's values alive


class Crossing:
    """A `Backchannel` for another thread: hands everything over to the one on the loop."""

    __slots__ = ("_back", "_loop")

    def __init__(self, back: Backchannel, loop: asyncio.AbstractEventLoop) -> None:
        self._back = back
        self._loop = loop

    @property
    def stopped(self) -> str:
        return self._back.stopped

    @property
    def worker_id(self) -> str:
        return self._back.worker_id

    def note(self, progress: Progress) -> None:
        try:
            self._loop.call_soon_threadsafe(self._back.note, progress)
        except RuntimeError:
            return  # the loop is closed, and progress is advisory

    def save(self, value: Any) -> Awaitable[None]:
        """Blocks until it is kept; what is returned may be awaited, or not.

        Also for a handler that was told to stop: what it saves is where the next one goes on.
        """
        if self._loop.is_closed():
            raise LeaseLost("the worker has ended")
        kept = asyncio.run_coroutine_threadsafe(_save(self._back, value), self._loop)
        try:
            kept.result(_SAVE_WITHIN_S)
        except TimeoutError:
            kept.cancel()
            raise
        return _Kept()


class _Kept:
    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


async def _save(back: Backchannel, value: Any) -> None:
    await back.save(value)


def _carried(error: BaseException) -> BaseException:
    """A future takes no StopIteration, and a cancellation from a thread is not one of ours."""
    if isinstance(error, (StopIteration, asyncio.CancelledError, KeyboardInterrupt)):
        carried = RuntimeError(f"the handler raised {type(error).__name__}: {error}")
        carried.__cause__ = error
        return carried
    return error
