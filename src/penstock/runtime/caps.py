"""Caps: a task's own limit of concurrent runs, on a source that feeds many tasks.

Where a source feeds one task its seat has the limit and no more is taken. Where it feeds
many, what will come is not known before it is taken: a job over its task's limit waits in
hand, with its slot and its lease, until another of that task ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.runtime.job import Job
from penstock.runtime.pull import Desk

__all__ = ["Caps"]


@dataclass(slots=True)
class _Cap:
    limit: int
    running: int = 0
    waiting: deque[tuple[Job, Desk]] = field(default_factory=deque)


class Caps:
    """Limits by task name; false when there are none."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._caps = {name: _Cap(limit) for name, limit in limits.items()}

    def __bool__(self) -> bool:
        return bool(self._caps)

    def admit(self, job: Job, desk: Desk) -> bool:
        """Whether ``job`` may start now; if not, it waits here with its lease kept."""
        cap = self._caps.get(job.invocation.task)
        if cap is None or job.verdict is not None:
            return True
        job.capped = True
        if cap.running < cap.limit:
            cap.running += 1
            return True
        job.wait()
        cap.waiting.append((job, desk))
        return False

    def released(self, job: Job) -> Iterator[tuple[Job, Desk]]:
        """A capped job ended: those that may start in its place, their clocks set to now."""
        cap = self._caps[job.invocation.task]
        cap.running -= 1
        while cap.waiting and cap.running < cap.limit:
            cap.running += 1
            next_job, desk = cap.waiting.popleft()
            next_job.go()
            yield next_job, desk

    def drained(self) -> Iterator[tuple[Job, Desk]]:
        """All that wait, to be given back."""
        for cap in self._caps.values():
            while cap.waiting:
                cap.running += 1
                yield cap.waiting.popleft()
