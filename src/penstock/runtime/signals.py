"""Stop signals: SIGTERM and SIGINT, heard from the first moment to the last.

A process that ends by the default action of a signal gives nothing back. So a supervised
process is born with both signals blocked, one that comes early waits, and it is told to
whoever listens next: first `leave_at_once` (nothing has begun), then `StopSignals`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

__all__ = ["STOP_SIGNALS", "StopSignals", "block_stop_signals", "leave_at_once", "told_to_stop"]

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

T = TypeVar("T")

_told = threading.Event()


def told_to_stop() -> bool:
    """Whether this process has heard a stop signal: one more would cut its drain short."""
    return _told.is_set()


def block_stop_signals() -> None:
    """Make them wait: for a child between fork and exec, which keeps the mask."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def leave_at_once() -> None:
    """Until `StopSignals` listens: end with exit code 0, for nothing has begun."""
    for number in STOP_SIGNALS:
        signal.signal(number, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _leave(_number: int, _frame: object) -> None:
    with suppress(Exception):
        sys.stderr.flush()
    os._exit(0)


class StopSignals:
    """A context within which the signals are told to a listener, on the running loop.

    Those that come before anybody listens are kept for who does. Outside the main thread,
    where no signals arrive, it does nothing.
    """

    def __init__(self) -> None:
        self._early: list[int] = []
        self._heard = asyncio.Event()
        self._listener: Callable[[int], None] = self._early.append
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._loop = asyncio.get_running_loop()
            for number in STOP_SIGNALS:
                self._loop.add_signal_handler(number, self._hear, number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            for number in STOP_SIGNALS:
                self._loop.remove_signal_handler(number)

    def tell(self, listener: Callable[[int], None]) -> None:
        """Pass on what has been heard already, and from now on each signal as it comes."""
        self._listener = listener
        early, self._early = self._early, []
        for number in early:
            listener(number)

    async def unless_heard(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What ``work`` gives; ``None``, and the work cancelled, when a signal comes before."""
        doing = asyncio.ensure_future(work)
        hearing = asyncio.ensure_future(self._heard.wait())
        try:
            await asyncio.wait([doing, hearing], return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            return None
        finally:
            for task in (doing, hearing):
                task.cancel()
            await asyncio.gather(doing, hearing, return_exceptions=True)

    def _hear(self, number: int) -> None:
        _told.set()
        self._heard.set()
        self._listener(number)
