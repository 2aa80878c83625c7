"""Consumers of either side in processes of their own, and what they say they do."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.interop.omniq.peer_env import peer_python

__all__ = ["Consumer", "Fact", "ours", "theirs"]

_HERE = Path(__file__).parent
_PATIENCE_S = 60.0


class Fact(NamedTuple):
    """One thing that a handler said. ``at`` is the machine's monotonic clock, the same for all."""

    kind: str
    id: str
    gid: str
    attempt: int
    at: float


class Consumer:
    """A program that consumes; ``with`` kills it at the end if it still runs."""

    def __init__(self, command: Iterable[str | Path]) -> None:
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_HERE.parents[2],
        )
        self._changed = threading.Condition()
        self._facts: list[Fact] = []
        self._said: set[str] = set()
        self.killed_at: float | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        self.until(lambda: "ready" in self._said, "it is ready")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(10)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()

    def facts(self, *kinds: str) -> list[Fact]:
        """What was said so far, of these kinds or all."""
        with self._changed:
            return [fact for fact in self._facts if not kinds or fact.kind in kinds]

    def await_facts(self, kind: str, count: int = 1) -> list[Fact]:
        """The facts of a kind, once there are so many."""
        self.until(lambda: len(self._of(kind)) >= count, f"{count} jobs are {kind}")
        return self.facts(kind)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(holds, _PATIENCE_S), f"never true: {what}"

    def kill(self) -> None:
        """SIGKILL, in the middle of whatever it does."""
        self._process.kill()
        self._process.wait()
        self.killed_at = time.monotonic()

    def stop(self, how: str) -> int:
        """SIGTERM, SIGINT or ``stop`` (a call from another thread); the exit code."""
        if how == "stop":
            assert self._process.stdin is not None
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        else:
            self._process.send_signal(signal.Signals[how])
        code = self._process.wait(_PATIENCE_S)
        self._reader.join(10)
        return code

    def _of(self, kind: str) -> list[Fact]:
        return [fact for fact in self._facts if fact.kind == kind]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said: dict[str, Any] = json.loads(line)
            with self._changed:
                self._said.add(said["kind"])
                if "id" in said:
                    self._facts.append(Fact(*(said[name] for name in Fact._fields)))
                self._changed.notify_all()


def ours(
    url: str,
    queue: str,
    *,
    kind: str = "asyncio",
    concurrency: int = 1,
    drain: bool = True,
    compat: str = "v1",
) -> Consumer:
    """Our consumer, with the client for asyncio or the one for threads."""
    more = [] if drain else ["--no-drain"]
    return Consumer(
        [
            *(sys.executable, "-m", "tests.interop.omniq.ours_main", url, queue),
            *("--kind", kind, "--concurrency", str(concurrency), "--compat", compat, *more),
        ]
    )


def theirs(version: str, url: str, queue: str) -> Consumer:
    """The consumer of PyPI omniq: one job at a time."""
    return Consumer([peer_python(version), "-u", _HERE / "peer_main.py", url, "consume", queue])
