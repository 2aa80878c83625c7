"""Programs for tests that need real processes: started, told things by signals, and heard.

A program prints lines; a test waits for the line it needs, never for time to pass. Lines are
flushed whole (``print(…, flush=True)``; unbuffered output would be written word by word):
so those of several processes do not mix.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

__all__ = ["ROOT", "Program", "gone", "running"]

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60


class Program:
    """One Python program under way."""

    def __init__(
        self, source: str, *arguments: str, stdin: int | None = None, **environ: str
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source), *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "", **environ},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, word: str) -> str:
        """The next line that holds ``word``; the test's own timeout is the deadline."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line)
            if word in line:
                return line.strip()
        raise AssertionError(f"ended without {word!r}:\n{''.join(self.said)}")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def close_stdin(self) -> None:
        """Let whoever reads its standard input go on."""
        stdin, self._process.stdin = self._process.stdin, None
        assert stdin is not None
        stdin.close()

    def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        out, _ = self._process.communicate(timeout=DEADLINE_S)
        self.said.append(out)
        return self._process.returncode

    @property
    def text(self) -> str:
        return "".join(self.said)

    def clear_up(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@contextmanager
def running(
    source: str, *arguments: str, stdin: int | None = None, **environ: str
) -> Iterator[Program]:
    program = Program(source, *arguments, stdin=stdin, **environ)
    try:
        yield program
    finally:
        program.clear_up()


def gone(*pids: int) -> bool:
    """Wait until none of these processes runs any more."""
    procs = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(procs, timeout=DEADLINE_S)
    return all(p.status() == psutil.STATUS_ZOMBIE for p in alive)
