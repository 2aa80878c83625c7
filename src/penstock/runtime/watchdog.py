"""Watchdogs: a worker that is alive but deaf, and an event loop that somebody blocks.

Deaf: a source has handed out nothing for a while although it was asked all the time and
work is waiting. It is told as unhealthy, and its take is dropped and begun anew. Blocked:
the loop has not turned for a while; a thread names the handler that holds it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import selectors
import sys
import threading
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from penstock.core.task import Task
from penstock.runtime.jobloop import JobLoop
from penstock.runtime.pull import Desk

__all__ = ["BlockWatch", "DeafWatch"]

_log = logging.getLogger("penstock.watchdog")

_ASK_WITHIN_S = 5.0
_SELECT, _LOOP, _RUN = selectors.__file__, asyncio.base_events.__file__, asyncio.runners.__file__


class DeafWatch:
    """Looks after all sources of a job loop; `look` is called now and then."""

    def __init__(self, loop: JobLoop, after_s: float, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._after_s = after_s
        self._clock = clock
        self._deaf: dict[str, int] = {}  # and how much each had received when it was found so

    @property
    def deaf(self) -> frozenset[str]:
        """Names of sources that hear nothing while work is waiting."""
        return frozenset(self._deaf)

    async def look(self) -> list[str]:
        """Check every source; those that are newly found deaf are named, and asked anew."""
        found: list[str] = []
        for desk in self._loop.desks:
            name = desk.source.name
            if self._deaf.get(name, desk.received) != desk.received:
                del self._deaf[name]
            silent = self._silent(desk)
            if not silent and name not in self._deaf:
                continue
            if not await self._has_waiting(desk):
                self._deaf.pop(name, None)  # others did it, or there never was any
            elif silent:
                self._cure(desk, found)
        return found

    def _cure(self, desk: Desk, found: list[str]) -> None:
        name = desk.source.name
        _log.error("source %s hears nothing although work is waiting: asking anew", name)
        if name not in self._deaf:
            found.append(name)
        self._deaf[name] = desk.received
        self._loop.rearm(desk)

    def _silent(self, desk: Desk) -> bool:
        asked = desk.seat.polling > 0 and not desk.lost
        return asked and self._clock() - desk.heard_at >= self._after_s

    async def _has_waiting(self, desk: Desk) -> bool:
        received = desk.received
        try:
            waiting = await asyncio.wait_for(desk.source.waiting(), _ASK_WITHIN_S)
        except Exception:  # noqa: BLE001 - whoever cannot be asked is not proven deaf
            _log.debug("source %s cannot tell what waits", desk.source.name, exc_info=True)
            return False
        return bool(waiting) and desk.received == received


class BlockWatch:
    """A thread that pings the event loop and tells who keeps it from answering."""

    def __init__(self, after_s: float, tasks: Iterable[Task] = ()) -> None:
        self._after_s = after_s
        self._tasks = {code: t.name for t in tasks if (code := _code_of(t.fn)) is not None}
        self._answered = threading.Event()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._watched = 0
        self.blocks = 0

    def start(self) -> None:
        """Watch the running loop; call on its thread."""
        if self._thread is None:
            self._watched = threading.get_ident()
            self._thread = threading.Thread(
                target=self._watch,
                args=(asyncio.get_running_loop(),),
                name="penstock-watchdog",
                daemon=True,
            )
            self._thread.start()

    def stop(self) -> None:
        self._end.set()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._end.is_set():
            self._answered.clear()
            try:
                loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:
                return  # the loop is closed
            if not self._answered.wait(self._after_s) and not self._end.is_set():
                self._tell()
                while not self._answered.wait(1.0) and not self._end.is_set():
                    continue
            self._end.wait(self._after_s)

    def _tell(self) -> None:
        frame = sys._current_frames().get(self._watched)
        if frame is None or _idle(frame):
            return  # it waits for events, or for a processor: nobody is to blame
        self.blocks += 1
        where, task = _place(frame, self._tasks)
        who = f"task {task!r}" if task else "something that is not a task"
        _log.warning(
            "the event loop is blocked for more than %.0f ms by %s, at %s\n"
            "  try: make the handler a plain def, so that it runs in a thread"
            " (cpu=True: in a process)",
            self._after_s * 1000,
            who,
            where,
            extra={"taskId": task} if task else {},
        )


def _idle(innermost: FrameType) -> bool:
    """Whether it is the event loop itself that waits; uvloop has no frames of its own."""
    file = innermost.f_code.co_filename
    caller = innermost.f_back.f_code.co_filename if innermost.f_back is not None else ""
    return file == _RUN or (file == _SELECT and caller == _LOOP)


def _place(innermost: FrameType, tasks: dict[CodeType, str]) -> tuple[str, str]:
    """Where the blocked thread is: inside a handler the line of the handler, else the innermost."""
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_code in tasks:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}", tasks[frame.f_code]
        frame = frame.f_back
    return f"{innermost.f_code.co_filename}:{innermost.f_lineno}", ""


def _code_of(fn: Callable[..., Any]) -> CodeType | None:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return code if isinstance(code, CodeType) else None
