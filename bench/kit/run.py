"""The contender's side: what to do, and the meter that says what it cost.

Only the standard library: this runs in peers' environments too. A contender prepares itself,
then does its pieces inside `Run.measure`; what is outside is not counted:

    async def drain(run: Run) -> None:
        worker = await start_worker(run.url)
        with run.measure():
            await worker.handled(run.count)
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["MARK", "Meter", "Run", "percentile"]

MARK = "BENCH "  # begins the line in which a contender hands over its figures
READY = "READY"


class Meter:
    """Figures of one measured section. ``latencies_s`` may be filled by the contender."""

    def __init__(self, count: int, pids: Sequence[int], server_pid: int | None) -> None:
        self.count = count
        self.latencies_s: list[float] = []
        self.more: dict[str, float] = {}
        self._pids = pids
        self._server_pid = server_pid

    def begin(self) -> None:
        _forget_peak()
        self._rss = _status_kb("VmRSS")
        self._helpers = sum(cpu_of(pid) or 0.0 for pid in self._pids)
        self._server = cpu_of(self._server_pid)
        self._cpu = own_cpu()
        self._at = time.perf_counter()

    def end(self) -> None:
        self.seconds = time.perf_counter() - self._at
        self.cpu_s = own_cpu() - self._cpu
        self.helpers_s = sum(cpu_of(pid) or 0.0 for pid in self._pids) - self._helpers
        server, before = cpu_of(self._server_pid), self._server
        self.server_s = None if server is None or before is None else server - before
        self.rss_mb = max(_status_kb("VmHWM") - self._rss, 0) / 1024

    def figures(self) -> dict[str, float]:
        """Everything per piece, by the names that goals and columns use."""
        figures = {
            "count": float(self.count),
            "seconds": self.seconds,
            "rate": self.count / self.seconds,
            "cpu_us": (self.cpu_s + self.helpers_s) / self.count * 1e6,
            "rss_mb": self.rss_mb,
        }
        if self._pids:
            figures["own_us"] = self.cpu_s / self.count * 1e6
            figures["helper_us"] = self.helpers_s / self.count * 1e6
        if self.server_s is not None:
            figures["server_us"] = self.server_s / self.count * 1e6
        if self.latencies_s:
            ordered = sorted(self.latencies_s)
            figures["p50_ms"] = percentile(ordered, 0.50) * 1000
            figures["p99_ms"] = percentile(ordered, 0.99) * 1000
        return figures | self.more


class Run:
    """What one contender is to do: ``count`` pieces at the server under ``url``.

    ``prefix`` is a name of its own for streams, buckets and queues; ``options`` are the
    scenario's with the contender's over them.
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told = told
        self.url: str = told["url"]
        self.prefix: str = told["prefix"]
        self.count: int = told["count"]
        self.options: dict[str, Any] = told["options"]
        self.meter: Meter | None = None

    @contextmanager
    def measure(self, count: int | None = None, *, pids: Sequence[int] = ()) -> Iterator[Meter]:
        """Measure what happens inside: time, CPU of this process and of ``pids``, memory."""
        pieces = self.count if count is None else count
        self.meter = meter = Meter(pieces, pids, self.told["server_pid"])
        meter.begin()
        try:
            yield meter
        finally:
            meter.end()

    @asynccontextmanager
    async def helper(self, program: str, **options: Any) -> AsyncIterator[int]:
        """Another process of the same kind that runs ``program`` (which calls `ready` and then
        serves until it is ended); its pid, for `measure`."""
        told = {**self.told, "program": program, "options": {**self.options, **options}}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.kit.child",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(told).encode() + b"\n")
            async with asyncio.timeout(60):
                while (line := await process.stdout.readline()).strip() != READY.encode():
                    if not line:
                        raise RuntimeError(f"the helper {program} ended before it was ready")
            yield process.pid
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(10):
                    await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()

    @staticmethod
    def ready() -> None:
        """Said by a helper once it serves."""
        print(READY, flush=True)


def percentile(ordered: Sequence[float], part: float) -> float:
    """The value below which ``part`` of the sorted values lie (nearest rank).

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.0
    """
    rank = max(1, -(-int(len(ordered) * part * 1000) // 1000))
    return ordered[min(rank, len(ordered)) - 1]


def own_cpu() -> float:
    """Seconds of CPU that this process and its ended children have used."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def cpu_of(pid: int | None) -> float | None:
    """Seconds of CPU that process ``pid`` has used, where the system tells.

    By the scheduler's own count of each thread; without it, in steps of 10 ms.
    """
    if pid is None:
        return None
    with suppress(OSError):
        if ran_ns := sum(_ran_ns(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
            return ran_ns / 1e9
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ran_ns(thread: Path) -> int:
    with suppress(OSError, IndexError):  # it may have ended since it was listed
        return int((thread / "schedstat").read_text().split()[0])
    return 0


def _status_kb(field: str) -> int:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _forget_peak() -> None:
    """Let the peak of memory count from now, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
