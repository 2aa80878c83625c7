"""Freezing a server process, so that what follows certainly meets a frozen one.

A stop signal takes effect when each thread of the process gets round to it: on a busy machine
some still serve for a while.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["freeze"]

_WITHIN_S = 5.0
_STOPPED = ("T", "t", "X", "Z")


def freeze(pid: int) -> None:
    """SIGSTOP process ``pid``, and return once none of its threads runs, where the system tells."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _WITHIN_S
    while not _is_frozen(pid) and time.monotonic() < deadline:
        time.sleep(0.001)


def _is_frozen(pid: int) -> bool:
    threads: list[Path] = []
    with suppress(OSError):  # no /proc here, or it has ended
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    return all(_state(thread) in _STOPPED for thread in threads)


def _state(thread: Path) -> str:
    with suppress(OSError, IndexError):
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    return "X"
