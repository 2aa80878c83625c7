"""The supervisor: several worker processes as one, restarted when they end, drained together.

Each child is the same command with ``PENSTOCK_SUPERVISED`` in its environment. A recycled
child is replaced at once, a crashed one after a growing pause, and one that keeps crashing
is told as such. SIGTERM and SIGINT are passed on, and again when they come again: children
have a process group of their own, so that Ctrl-C reaches each of them once. They start with
both signals blocked, so none is lost or deadly before they listen.

Children drain and end with the supervisor, even when that is killed: each holds the reading
end of a pipe that nobody writes to and that ends with it. (The kernel's own signal at the
death of a parent will not do: it comes once for each thread the parent had, and a second
signal cuts a drain short.)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import stat
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.runtime.options import ExitCode
from penstock.runtime.signals import STOP_SIGNALS, block_stop_signals, told_to_stop

__all__ = ["MARKER", "Supervisor", "die_with_supervisor", "place_number", "supervised"]

MARKER = "PENSTOCK_SUPERVISED"

_log = logging.getLogger("penstock.supervisor")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_LIVED_S = 10.0  # who lived that long did not crash at once: its pause begins anew
_LOOP_AFTER = 5
_ITS_LAST_WORD_S = 0.5
_watching = False
_place = 1


def supervised() -> bool:
    """Whether this process is a child of a supervisor."""
    return _lifeline() is not None


def place_number() -> int:
    """Which of the supervisor's processes this is, from 1; 1 as well without a supervisor."""
    _lifeline()
    return _place


def die_with_supervisor(patience_s: float = 120.0) -> None:
    """In a child: drain once the supervisor is gone, and end for good after ``patience_s``.

    Does nothing in a process that is not supervised, or that watches already.
    """
    global _watching  # noqa: PLW0603 - one process, one supervisor
    lifeline = _lifeline()
    if lifeline is not None and not _watching:
        _watching = True
        watch = threading.Thread(
            target=_watch, args=(lifeline, patience_s), name="penstock-orphan", daemon=True
        )
        watch.start()


@functools.cache
def _lifeline() -> int | None:
    """The pipe that ends with the supervisor. Processes that we start are not its children."""
    global _place
    said, _, number = os.environ.pop(MARKER, "").partition(":")
    try:
        lifeline, _place = int(said), int(number)
        if not stat.S_ISFIFO(os.fstat(lifeline).st_mode):
            return None
    except (ValueError, OSError):
        return None
    os.set_inheritable(lifeline, False)
    return lifeline


def _watch(lifeline: int, patience_s: float) -> None:
    os.read(lifeline, 1)
    _log.warning("the supervisor is gone: stopping")
    time.sleep(_ITS_LAST_WORD_S)
    if not told_to_stop():  # it may have passed a signal on before it went
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(patience_s)
    os._exit(ExitCode.FORCED)


@dataclass(slots=True)
class _Place:
    """One of the N places for a worker process."""

    number: int
    process: asyncio.subprocess.Process | None = None
    crashes: int = 0
    starts: int = 0


class Supervisor:
    """Keeps ``count`` processes of ``command`` alive until it is told to stop."""

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        first_pause_s: float = _FIRST_PAUSE_S,
        kill_after_s: float = 60.0,
    ) -> None:
        self._command = list(command)
        self._places = [_Place(number) for number in range(1, count + 1)]
        self._first_pause_s = first_pause_s
        self._kill_after_s = kill_after_s
        self._stopping = asyncio.Event()
        self._passed_on: set[int] = set()
        self._worst = 0

    async def run(self) -> int:
        """Supervise until a signal; returns when all children ended, 0 if all ended well."""
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            async with asyncio.TaskGroup() as group:
                for place in self._places:
                    group.create_task(self._keep(place, reading), name=f"place:{place.number}")
        finally:
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)
            os.close(reading)
            os.close(writing)
        return self._worst

    def pids(self) -> list[int]:
        """The children that run now."""
        return [p.process.pid for p in self._places if p.process is not None]

    def _signalled(self, number: int) -> None:
        again = self._stopping.is_set()
        self._stopping.set()
        _log.info("passing on %s%s", signal.Signals(number).name, ", again" if again else "")
        for place in self._places:
            self._pass_on(place, number)

    def _pass_on(self, place: _Place, number: int) -> None:
        self._passed_on.add(number)
        process = place.process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, place: _Place, lifeline: int) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            began = loop.time()
            try:
                code = await self._live(place, lifeline)
            except OSError as error:  # no memory, no process ids: the others go on
                _log.error("worker process %d cannot be started: %s", place.number, error)
                code = ExitCode.FAILED
            if self._stopping.is_set():
                self._worst = self._worst or self._blame(code)
                return
            if code == ExitCode.USAGE and place.starts == 1:
                self._give_up(code)
                return
            await self._pause(place, code, loop.time() - began)

    def _give_up(self, code: int) -> None:
        """The command itself is wrong, and would be every time. A fleet that has begun well goes
        on, whatever a later start says: what runs may be worth more than the new code."""
        self._worst = code
        self._stopping.set()
        for place in self._places:
            self._pass_on(place, signal.SIGTERM)

    def _blame(self, code: int) -> int:
        """What the end of a child adds to our exit code, while we stop.

        One that the signal itself ended had nothing in hand; one that was just being
        recycled drained as well. Any other end counts, as a shell would tell it.
        """
        if code == ExitCode.RECYCLED or -code in self._passed_on:
            return 0
        return code if code >= 0 else 128 - code

    async def _live(self, place: _Place, lifeline: int) -> int:
        """One process, from its start to its end."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env={**os.environ, MARKER: f"{lifeline}:{place.number}"},
            pass_fds=(lifeline,),
            process_group=0,
            preexec_fn=block_stop_signals,
        )
        place.process = process
        place.starts += 1
        _log.info("worker process %d runs as %d", place.number, process.pid)
        try:
            if self._stopping.is_set():  # the signal came while it was being started
                self._pass_on(place, signal.SIGTERM)
            await self._end_of(process)
            return process.returncode or 0
        finally:
            place.process = None
            if process.returncode is None:  # we are being cancelled
                process.kill()

    async def _end_of(self, process: asyncio.subprocess.Process) -> None:
        ended = asyncio.ensure_future(process.wait())
        told = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait([ended, told], return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        try:
            await asyncio.wait_for(asyncio.shield(ended), self._limit_s(ended))
        except TimeoutError:
            _log.error("process %d did not end in time: killed", process.pid)
            process.kill()
            await ended

    def _limit_s(self, ended: asyncio.Future[int]) -> float | None:
        return None if ended.done() else self._kill_after_s

    async def _pause(self, place: _Place, code: int, lived_s: float) -> None:
        """Wait before the next start: not at all after a recycling, longer after each crash."""
        if code == ExitCode.RECYCLED:
            place.crashes = 0
            return
        place.crashes = 1 if lived_s >= _LIVED_S else place.crashes + 1
        pause_s = min(self._first_pause_s * 2 ** min(place.crashes - 1, 16), _LONGEST_PAUSE_S)
        _log.warning(
            "worker process %d ended with %s; starting another in %.1f s",
            place.number,
            _said(code),
            pause_s,
        )
        if place.crashes == _LOOP_AFTER:
            _log.error(
                "worker process %d has crashed %d times in a row\n"
                "  try: run the command without --processes and look at its first error",
                place.number,
                place.crashes,
            )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause_s)


def _said(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"code {code}"
