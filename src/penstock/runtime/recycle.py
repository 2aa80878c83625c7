"""Recycling: ending a worker before it grows too old or too big, so that a fresh one follows.

The worker drains as for a deploy and ends with `ExitCode.RECYCLED`; the supervisor starts
another at once. Memory that a library leaks so never adds up to an outage.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

__all__ = ["Recycle", "resident_bytes"]

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Memory this process holds now (its peak where the system tells no more)."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Recycle:
    """Says when a worker has done enough. Limits of ``None`` are never reached."""

    def __init__(self, max_jobs: int | None = None, max_rss_mb: int | None = None) -> None:
        self._left = max_jobs
        self._max_rss = None if max_rss_mb is None else max_rss_mb * 1024 * 1024

    def job_ended(self) -> str:
        """Count one job; a reason to recycle, once the limit is reached."""
        if self._left is None:
            return ""
        self._left -= 1
        return "it has done its max_jobs" if self._left <= 0 else ""

    def memory(self) -> str:
        """A reason to recycle when too much memory is held."""
        if self._max_rss is None:
            return ""
        held = resident_bytes()
        if held <= self._max_rss:
            return ""
        return f"it holds {held >> 20} MB, more than max_rss_mb {self._max_rss >> 20}"
