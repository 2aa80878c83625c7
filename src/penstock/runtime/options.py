"""Options of a worker, with the defaults that suit most."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

from penstock.core.errors import ConfigError

__all__ = ["ExitCode", "WorkerOptions"]


class ExitCode(IntEnum):
    """How a worker process ends. A supervisor starts a recycled one again at once, and gives up
    on a command that is wrong."""

    CLEAN = 0
    FAILED = 1
    USAGE = 2
    RECYCLED = 88
    FORCED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """``concurrency`` is shared by all stored work, ``requests`` by all that waits for an answer.

    ``threads`` (sync handlers) is as many as ``concurrency`` unless set, ``processes``
    (``cpu=True``) as many as there are cores. ``deaf_after`` and ``block_after`` set the two
    watchdogs, ``None`` turns one off; ``max_jobs`` and ``max_rss_mb`` end the worker so that
    a supervisor starts it afresh. ``health`` is where the health door listens (``8081``,
    ``0.0.0.0:8081``), the second process of a supervisor one port above, and so on;
    ``health_token`` is what others than this machine need to read more than the status.
    """

    concurrency: int = 64
    requests: int = 256
    threads: int | None = None
    processes: int | None = None
    grace: timedelta = timedelta(seconds=30)
    idle_wait: timedelta = timedelta(seconds=5)
    settle_within: timedelta = timedelta(seconds=60)
    deaf_after: timedelta | None = timedelta(seconds=60)
    block_after: timedelta | None = timedelta(milliseconds=250)
    max_jobs: int | None = None
    max_rss_mb: int | None = None
    health: str | None = None
    health_token: str | None = None
    signals: bool = True

    def __post_init__(self) -> None:
        for name in ("concurrency", "requests", "threads", "processes", "max_jobs", "max_rss_mb"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}", remedy="give 1 or more")
        if self.grace < timedelta(0):
            raise ConfigError("grace cannot be negative", remedy="give 0 to interrupt at once")

    @property
    def thread_count(self) -> int:
        return self.threads or self.concurrency

    @property
    def process_count(self) -> int:
        return self.processes or os.cpu_count() or 1
