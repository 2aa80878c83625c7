"""Run a program, strike it dead, start it again, and leave nothing behind.

`Program` is one child process in a process group of its own: its output can be waited
for, it can be killed or frozen, and whatever happens to the test the whole group is gone
afterwards. `Killer` starts a program again and again, ending it at a named point or at
random moments, until a condition holds.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import os
import re
import signal
import sys
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from tests.chaos.points import KillPoint, RandomKills, Window

__all__ = ["Killer", "Program", "Unmet", "eventually", "is_stopped"]

_KEPT_LINES = 20_000
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class Unmet(AssertionError):
    """A deadline passed before what was awaited came true."""


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]],
    within: float = 10.0,
    *,
    what: str = "the condition",
    every: float = 0.02,
) -> None:
    """Return as soon as ``condition`` holds; raises `Unmet` after ``within`` seconds."""
    deadline = time.monotonic() + within
    while True:
        holds = condition()
        if await holds if isinstance(holds, Awaitable) else holds:
            return
        if time.monotonic() >= deadline:
            raise Unmet(f"{what} did not come true within {within:g} s")
        await asyncio.sleep(every)


class Program:
    """A child process with its output; ``async with`` starts it and ends its whole group."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.command = [str(part) for part in command]
        self._env = {**os.environ, **(env or {})}
        self._cwd = cwd
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._forgotten = 0  # lines that have left the deque
        self._changed = asyncio.Event()

    @classmethod
    def python(
        cls, target: str | Path, *args: str, env: Mapping[str, str] | None = None
    ) -> Program:
        """A Python file, or a module by its dotted name, in this interpreter, unbuffered."""
        where = [str(target)] if str(target).endswith(".py") else ["-m", str(target)]
        return cls([sys.executable, "-u", *where, *args], env=env)

    async def __aenter__(self) -> Program:
        return await self.start()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def start(self) -> Program:
        """Start the child. It dies with this process too, on systems that can arrange it."""
        self._process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._env,
            cwd=self._cwd,
            limit=1 << 22,
            start_new_session=True,
            preexec_fn=_die_with_parent if _libc else None,
        )
        _alive.add(self)
        self._reader = asyncio.create_task(self._read(), name=f"output:{self.pid}")
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """``None`` while it runs; ``-9`` after SIGKILL, as `subprocess` counts."""
        return self._process.returncode if self._process else None

    @property
    def output(self) -> str:
        """Standard output and error so far, together."""
        return "\n".join(self._lines)

    async def lines(self) -> AsyncIterator[str]:
        """Every line from the first one on; ends when the output does."""
        seen = 0
        while True:
            changed = self._changed
            seen = max(seen, self._forgotten)
            while seen - self._forgotten < len(self._lines):
                seen += 1
                yield self._lines[seen - 1 - self._forgotten]
            if self._reader is None or self._reader.done():
                return
            await changed.wait()

    async def line(self, matching: str, within: float = 10.0) -> re.Match[str]:
        """The first line, past or to come, in which the pattern is found.

        Raises `Unmet` with the last of the output when the time is up or the output ends.
        """
        try:
            async with asyncio.timeout(within):
                async for line in self.lines():
                    if found := re.search(matching, line):
                        return found
            await self._ended()
        except TimeoutError:
            pass
        tail = "\n".join(list(self._lines)[-15:])
        raise Unmet(f"no line matching {matching!r} (exit code {self.exit_code}); last:\n{tail}")

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the child, or to all its group; nothing happens if it is gone."""
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self.pid, number)
            elif self.running:
                os.kill(self.pid, number)

    def kill(self, *, group: bool = False) -> None:
        self.signal(signal.SIGKILL, group=group)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    async def wait(self, within: float = 10.0) -> int:
        """The exit code. Raises `Unmet` if the child is still there after ``within`` seconds."""
        assert self._process is not None, "not started"
        try:
            code = await asyncio.wait_for(self._process.wait(), within)
        except TimeoutError:
            tail = "\n".join(list(self._lines)[-15:])
            raise Unmet(f"pid {self.pid} still runs after {within:g} s; last:\n{tail}") from None
        if self._reader:  # its last words; a grandchild may hold the pipe, so not for ever
            await asyncio.wait([self._reader], timeout=0.5)
        return code

    async def stop(self) -> None:
        """End the whole group with SIGKILL and reap it; safe to repeat."""
        process, self_reader = self._process, self._reader
        if process is None:
            return
        self.kill(group=True)
        await process.wait()
        _alive.discard(self)
        if self_reader is not None:
            await asyncio.wait([self_reader], timeout=1.0)
            self_reader.cancel()
            await asyncio.gather(self_reader, return_exceptions=True)
        process._transport.close()  # type: ignore[attr-defined]  # no public way to let go of pipes

    async def _ended(self) -> None:
        """The output is over, so the exit code is close: worth a moment for the message."""
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), 1.0)

    async def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        try:
            async for raw in self._process.stdout:
                self._forgotten += len(self._lines) == _KEPT_LINES
                self._lines.append(raw.decode(errors="replace").rstrip("\r\n"))
                self._stir()
        finally:
            asyncio.get_running_loop().call_soon(self._stir)  # when this task counts as done

    def _stir(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Killer:
    """Starts what ``make`` makes, ends it as a window says, and starts it again.

    ``make`` is given the extra environment of each life. At a named point the first life
    must die (a point that is never reached proves nothing, so that is `Unmet`); further
    lives are ordinary. With random kills each life but the last is cut short. The last
    one gets SIGTERM once ``until`` holds and must leave in peace.
    """

    def __init__(
        self, make: Callable[[Mapping[str, str]], Program], *, max_restarts: int = 20
    ) -> None:
        self._make = make
        self._max_restarts = max_restarts
        self.deaths = 0
        self.starts = 0

    async def run(
        self,
        window: Window,
        until: Callable[[], Awaitable[bool]],
        *,
        dice: Random,
        within: float = 60.0,
    ) -> None:
        """Kill as the window says, then let the program live until ``until`` holds."""
        try:
            async with asyncio.timeout(within):
                if isinstance(window, KillPoint):
                    await self._die_at(window, within)
                else:
                    await self._die_at_random(window, dice)
                await self._live(until, within)
        except TimeoutError as error:
            lives = f"{self.deaths} deaths, {self.starts} starts"
            raise Unmet(f"window {window} was not over within {within:g} s: {lives}") from error

    async def _die_at(self, point: KillPoint, within: float) -> None:
        async with self._born(point.env) as program:
            if point.freeze:
                await eventually(lambda: is_stopped(program.pid), within, what=f"reaching {point}")
                program.kill()
            code = await program.wait(within)
            if code != -signal.SIGKILL:
                raise Unmet(
                    f"{point} was never reached: exit code {code}\n{program.output[-2000:]}"
                )
        self.deaths += 1

    async def _die_at_random(self, window: RandomKills, dice: Random) -> None:
        for life in window.lives(dice):
            async with self._born({}) as program:
                with contextlib.suppress(Unmet):
                    await program.wait(life)
                program.kill()
                await program.wait()
            self.deaths += 1

    async def _live(self, until: Callable[[], Awaitable[bool]], within: float) -> None:
        """Let it run until the condition holds; one that falls by itself is started again."""
        while True:
            async with self._born({}) as program:

                async def over(program: Program = program) -> bool:
                    return not program.running or await until()

                await eventually(over, within, what="the end of the work")
                if program.running:
                    program.terminate()
                    code = await program.wait(within)
                    if code not in (0, -signal.SIGTERM):  # one too young to listen dies of it
                        raise Unmet(f"it left with exit code {code}:\n{program.output[-2000:]}")
                    return
                if await until():
                    return
                if self.starts > self._max_restarts:
                    raise Unmet(f"it fell {self.starts} times by itself:\n{program.output[-2000:]}")

    def _born(self, env: Mapping[str, str]) -> Program:
        self.starts += 1
        return self._make(env)


def is_stopped(pid: int) -> bool:
    """Whether a process is frozen, by SIGSTOP or by a kill point."""
    import psutil

    return bool(psutil.pid_exists(pid) and psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def _die_with_parent() -> None:
    assert _libc is not None
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_alive: weakref.WeakSet[Program] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for program in list(_alive):
        program.kill(group=True)
