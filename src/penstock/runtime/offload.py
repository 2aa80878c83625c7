"""Offload: where handlers go that must not run on the event loop.

Plain functions run in threads, ``cpu=True`` ones in processes of their own. Both are
started only when the first such handler runs.
"""

from __future__ import annotations

import functools
from typing import Any

from penstock.core.context import Backchannel
from penstock.core.task import RunsIn
from penstock.runtime.processes import Processes
from penstock.runtime.threads import Threads
from penstock.runtime.workshop import Call, Plan

__all__ = ["Offload"]


class Offload:
    """The pools of one worker."""

    def __init__(self, threads: int, processes: int) -> None:
        self._threads = Threads(threads)
        self._processes = Processes(processes)
        self._room = {RunsIn.THREAD: threads, RunsIn.PROCESS: processes}

    def room(self, runs_in: RunsIn) -> int | None:
        """How many handlers may run there at once; ``None``: as many as like."""
        return self._room.get(runs_in)

    def call(
        self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], back: Backchannel
    ) -> Call:
        """Run the handler of ``plan`` where it belongs."""
        if plan.runs_in is RunsIn.PROCESS:
            return self._processes.submit(plan.fn, args, kwargs, back)
        return self._threads.submit(functools.partial(plan.fn, *args, **kwargs))

    def stop(self) -> None:
        """End the idle threads and all processes; a thread in a handler ends with the program."""
        self._threads.stop()
        self._processes.stop()
