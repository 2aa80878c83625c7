"""The worker: takes work from its sources until it is told to stop, and then stops well.

Created, configured, running, stopped: in that order, once. On SIGTERM or SIGINT it stops
pulling, lets what runs finish within the grace, interrupts and gives back the rest without
costing an attempt, and flushes its events. A second signal cuts all of that short.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from penstock.core.delivery import RequestSource, Source
from penstock.core.errors import ConfigError
from penstock.core.events import Event, EventKind, EventSink, now_utc
from penstock.core.ids import uuid7
from penstock.core.invocation import ProtocolName
from penstock.core.task import Task
from penstock.runtime.jobloop import JobLoop
from penstock.runtime.observe.metrics import Metrics
from penstock.runtime.observe.traces import Tracer
from penstock.runtime.offload import Offload
from penstock.runtime.options import ExitCode, WorkerOptions
from penstock.runtime.recycle import Recycle
from penstock.runtime.report import Report
from penstock.runtime.requestloop import RequestLoop
from penstock.runtime.signals import StopSignals
from penstock.runtime.supervisor import die_with_supervisor
from penstock.runtime.watchdog import BlockWatch, DeafWatch
from penstock.runtime.workshop import Workshop

__all__ = ["Health", "Worker", "WorkerState"]

_log = logging.getLogger("penstock.worker")

_PATROL_S = 1.0
_FLUSH_WITHIN_S = 5.0
_BEYOND_GRACE_S = 60.0


class WorkerState(StrEnum):
    CREATED = "created"
    CONFIGURED = "configured"
    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the worker can do its work, and if not, why."""

    ok: bool
    reasons: tuple[str, ...] = ()


class Worker:
    """Serves ``tasks`` from pulled ``sources`` and pushed ``requests``.

    ``sources`` and ``requests`` may also be given by `serve` before the start, for those
    that need the worker's ``id``. ``protocols``: under which names it announces itself.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        sources: Sequence[Source] = (),
        requests: Sequence[RequestSource] = (),
        options: WorkerOptions | None = None,
        sink: EventSink | None = None,
        *,
        worker_id: str | None = None,
        protocols: Sequence[ProtocolName] = (),
        metrics: Metrics | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.id = worker_id or uuid7()
        self.options = options or WorkerOptions()
        self.metrics = metrics or Metrics()
        self.state = WorkerState.CREATED
        self._tasks = tasks
        self._sources = list(sources)
        self._requests = list(requests)
        self._protocols = protocols
        self._report = Report(sink, self.metrics, self.id)
        self._tracer = tracer
        self._recycle = Recycle(self.options.max_jobs, self.options.max_rss_mb)
        self._offload = Offload(self.options.thread_count, self.options.process_count)
        self._jobs: JobLoop | None = None
        self._asks: RequestLoop | None = None
        self._deaf: DeafWatch | None = None
        self._blocked: BlockWatch | None = None
        self._patrol: asyncio.Task[None] | None = None
        self._drained: asyncio.Task[None] | None = None
        self._stop_asked = asyncio.Event()
        self._exit = ExitCode.CLEAN

    # Before the start -----------------------------------------------------------------------

    def serve(self, sources: Sequence[Source] = (), requests: Sequence[RequestSource] = ()) -> None:
        """Add places where work comes from."""
        if self.state is not WorkerState.CREATED:
            raise ConfigError(
                f"the worker is {self.state} already", remedy="add sources before it starts"
            )
        self._sources += sources
        self._requests += requests

    # Life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to serve; returns when every source is open. Safe to repeat."""
        if self.state is not WorkerState.CREATED:
            return
        jobs, asks = self._configure()
        self.state = WorkerState.CONFIGURED
        await asks.start()
        await jobs.start()
        if self._blocked is not None:
            self._blocked.start()
        self._patrol = asyncio.create_task(self._walk(), name=f"patrol:{self.id}")
        self.state = WorkerState.RUNNING
        self._announce(EventKind.WORKER_STARTED)
        _log.info("the worker runs, with %d tasks", len(self._tasks), extra=self._ids)

    async def run(self, signals: StopSignals | None = None) -> ExitCode:
        """Serve until a signal, `ask_to_stop` or a limit; drain; say how the process should end.

        ``signals``: those that the caller hears already; otherwise we listen by ourselves.
        """
        with ExitStack() as stack:
            if signals is None and self.options.signals:
                signals = stack.enter_context(StopSignals())
            if signals is not None:
                signals.tell(self._signalled)
            die_with_supervisor(self.options.grace.total_seconds() + _BEYOND_GRACE_S)
            await self.start()
            await self._stop_asked.wait()
            await self.stop()
        return self._exit

    def ask_to_stop(self, exit_code: ExitCode = ExitCode.CLEAN) -> None:
        """Let `run` end after a drain."""
        if not self._stop_asked.is_set():
            self._exit = exit_code
            self._stop_asked.set()

    def force(self) -> None:
        """Cut a drain short: interrupt and give back now."""
        self._exit = ExitCode.FORCED
        for loop in (self._jobs, self._asks):
            if loop is not None:
                loop.force()

    async def stop(self, grace: timedelta | None = None) -> None:
        """Drain and end. Safe to repeat; whoever calls again waits for the same end."""
        self.ask_to_stop()
        if self._drained is None:
            within = self.options.grace if grace is None else grace
            self._drained = asyncio.create_task(self._drain(within), name=f"drain:{self.id}")
        await asyncio.shield(self._drained)

    # Questions ------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Pieces of work in hand now."""
        return sum(loop.running for loop in (self._jobs, self._asks) if loop is not None)

    def health(self) -> Health:
        reasons = []
        if self.state is not WorkerState.RUNNING:
            reasons.append(f"the worker is {self.state}")
        if self._deaf is not None:
            reasons += [f"source {name} is deaf" for name in sorted(self._deaf.deaf)]
        if self._jobs is not None:
            reasons += [f"source {d.source.name} is lost" for d in self._jobs.desks if d.lost]
        return Health(not reasons, tuple(reasons))

    # Inside ---------------------------------------------------------------------------------

    @property
    def _ids(self) -> dict[str, str]:
        return {"workerId": self.id}

    def _configure(self) -> tuple[JobLoop, RequestLoop]:
        options = self.options
        shop = Workshop(
            tasks=self._tasks,
            offload=self._offload,
            report=self._report,
            worker_id=self.id,
            tracer=self._tracer or Tracer.installed(self.id),
            settle_within_s=options.settle_within.total_seconds(),
        )
        jobs = self._jobs = JobLoop(
            self._sources,
            shop,
            slots=options.concurrency,
            idle_wait=options.idle_wait,
            on_ended=self._job_ended if options.max_jobs else None,
        )
        asks = self._asks = RequestLoop(self._requests, shop, slots=options.requests)
        if options.deaf_after is not None:
            self._deaf = DeafWatch(jobs, options.deaf_after.total_seconds(), shop.clock)
        if options.block_after is not None:
            self._blocked = BlockWatch(options.block_after.total_seconds(), self._tasks.values())
        self._show_gauges(jobs, asks)
        return jobs, asks

    def _show_gauges(self, jobs: JobLoop, asks: RequestLoop) -> None:
        gauge = self.metrics.gauge
        gauge("slots_free", "Slots for stored work that are free.", lambda: jobs.free)
        gauge("jobs_running", "Stored work in hand.", lambda: jobs.running)
        gauge("requests_running", "Requests in hand.", lambda: asks.running)
        gauge("requests_refused", "Requests answered busy.", lambda: asks.refused)
        gauge(
            "zombie_threads",
            "Handlers that were given up and still run in a thread.",
            lambda: jobs.zombies + asks.zombies,
        )
        if (watch := self._blocked) is not None:
            gauge("loop_blocks", "Times the event loop was blocked.", lambda: watch.blocks)

    async def _drain(self, grace: timedelta) -> None:
        if self._jobs is not None and self._asks is not None:
            _log.info("the worker drains, %d in hand", self.running, extra=self._ids)
            await asyncio.gather(self._jobs.stop(grace), self._asks.stop(grace))
            self._announce(EventKind.WORKER_STOPPED)
        if self._patrol is not None:
            self._patrol.cancel()
        if self._blocked is not None:
            self._blocked.stop()
        self._offload.stop()
        try:
            await asyncio.wait_for(self._report.sink.flush(), _FLUSH_WITHIN_S)
        except Exception:  # noqa: BLE001 - events are advisory, the end of a worker is not
            _log.warning("the last events were not flushed", exc_info=True, extra=self._ids)
        self.state = WorkerState.STOPPED
        _log.info("the worker has stopped", extra=self._ids)

    def _signalled(self, number: int) -> None:
        if not self._stop_asked.is_set():
            _log.info("got %s", signal.Signals(number).name, extra=self._ids)
            self.ask_to_stop()
        else:
            _log.warning("got a second signal: no more grace", extra=self._ids)
            self.force()

    def _job_ended(self) -> None:
        if reason := self._recycle.job_ended():
            self._retire(reason)

    def _retire(self, reason: str) -> None:
        if not self._stop_asked.is_set():
            _log.info("the worker makes room for a fresh one: %s", reason, extra=self._ids)
            self.ask_to_stop(ExitCode.RECYCLED)

    async def _walk(self) -> None:
        while True:
            await asyncio.sleep(_PATROL_S)
            if reason := self._recycle.memory():
                self._retire(reason)
            for name in await self._deaf.look() if self._deaf is not None else ():
                self._announce(EventKind.WORKER_UNHEALTHY, f"source {name} is deaf")

    def _announce(self, kind: EventKind, note: str = "") -> None:
        for protocol in self._protocols:
            event = Event(
                id=Event.new_id(),
                kind=kind,
                protocol=protocol,
                name="worker",
                work_id=self.id,
                at=now_utc(),
                worker=self.id,
                note=note,
            )
            self._report.sink.emit(event)
