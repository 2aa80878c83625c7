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
from datetime import timedelta
from enum import StrEnum

from penstock.core.delivery import RequestSource, Source
from penstock.core.errors import ConfigError
from penstock.core.events import EventKind, EventSink
from penstock.core.ids import uuid7
from penstock.core.invocation import ProtocolName
from penstock.core.task import Task
from penstock.runtime.jobloop import JobLoop
from penstock.runtime.observe.door import Check, HealthDoor, parse_address
from penstock.runtime.observe.metrics import Metrics
from penstock.runtime.observe.traces import Tracer
from penstock.runtime.offload import Offload
from penstock.runtime.options import ExitCode, WorkerOptions
from penstock.runtime.recycle import Recycle
from penstock.runtime.report import Report
from penstock.runtime.requestloop import RequestLoop
from penstock.runtime.signals import StopSignals
from penstock.runtime.supervisor import die_with_supervisor, place_number
from penstock.runtime.watchdog import BlockWatch, DeafWatch
from penstock.runtime.workshop import Workshop

__all__ = ["Worker", "WorkerState"]

_log = logging.getLogger("penstock.worker")

_PATROL_S = 1.0
_FLUSH_WITHIN_S = 5.0
_BEYOND_GRACE_S = 60.0


class WorkerState(StrEnum):
    CREATED = "created"
    CONFIGURED = "configured"
    RUNNING = "running"
    STOPPED = "stopped"


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
        self._door: HealthDoor | None = None
        self._patrol: asyncio.Task[None] | None = None
        self._drained: asyncio.Task[None] | None = None
        self._stop_asked = asyncio.Event()
        self._exit = ExitCode.CLEAN
        self._why = ""

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
        if self._door is not None:
            await self._door.start()
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
            try:
                await self.start()
                await self._stop_asked.wait()
            except BaseException:  # a failed start, or whoever runs us has no time
                await self.stop(timedelta(0))
                raise
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

    def health(self) -> Check:
        """Whether this process is worth keeping; a drain is no reason to end it sooner."""
        reasons = [f"source {name} is deaf" for name in sorted(self._deaf_names)]
        if self.state is WorkerState.STOPPED:
            reasons.append("the worker is stopped")
        return Check(not reasons, tuple(reasons))

    def ready(self) -> Check:
        """Whether it takes work, from all its sources."""
        reasons = [*self.health().reasons]
        if self.state in (WorkerState.CREATED, WorkerState.CONFIGURED):
            reasons.append(f"the worker is {self.state}")
        elif self._stop_asked.is_set() and self.state is WorkerState.RUNNING:
            reasons.append("the worker drains")
        if self._jobs is not None:
            reasons += [f"source {d.source.name} is lost" for d in self._jobs.desks if d.lost]
        return Check(not reasons, tuple(reasons))

    @property
    def door_url(self) -> str:
        """Where the health door listens; empty where there is none."""
        return "" if self._door is None else self._door.url

    # Inside ---------------------------------------------------------------------------------

    @property
    def _deaf_names(self) -> frozenset[str]:
        return frozenset() if self._deaf is None else self._deaf.deaf

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
        asks = self._asks = RequestLoop(
            self._requests,
            shop,
            slots=options.requests,
            on_ended=self._job_ended if options.max_jobs else None,
        )
        if options.deaf_after is not None:
            self._deaf = DeafWatch(jobs, options.deaf_after.total_seconds(), shop.clock)
        if options.block_after is not None:
            self._blocked = BlockWatch(options.block_after.total_seconds(), self._tasks.values())
        if options.health is not None:
            self._door = self._make_door(options.health)
        self._show_gauges(jobs, asks)
        return jobs, asks

    def _make_door(self, address: str) -> HealthDoor:
        host, port = parse_address(address)
        number = place_number()
        return HealthDoor(
            f"{host}:{port + number - 1 if port else 0}",
            health=self.health,
            ready=self.ready,
            metrics=self.metrics.render,
            token=self.options.health_token,
            facts={"worker": self.id, "process": number},
        )

    def _show_gauges(self, jobs: JobLoop, asks: RequestLoop) -> None:
        gauge = self.metrics.gauge
        gauge("slots_free", "Slots for stored work that are free.", lambda: jobs.free)
        gauge("jobs_running", "Stored work in hand.", lambda: jobs.running)
        gauge("ready", "1 while the worker takes work from all its sources.", self._is_ready)
        gauge("events_dropped", "Lifecycle events lost.", lambda: self._report.sink.dropped)
        gauge("requests_running", "Requests in hand.", lambda: asks.running)
        gauge("requests_refused", "Requests answered busy.", lambda: asks.refused)
        gauge(
            "zombie_threads",
            "Handlers that were given up and still run in a thread.",
            lambda: jobs.zombies + asks.zombies,
        )
        if (watch := self._blocked) is not None:
            gauge("loop_blocks", "Times the event loop was blocked.", lambda: watch.blocks)

    def _is_ready(self) -> float:
        return 1.0 if self.ready().ok else 0.0

    async def _drain(self, grace: timedelta) -> None:
        if self._jobs is not None and self._asks is not None:
            _log.info("the worker drains, %d in hand", self.running, extra=self._ids)
            ends = self._jobs.stop(grace), self._asks.stop(grace)
            for fault in await asyncio.gather(*ends, return_exceptions=True):
                if isinstance(fault, BaseException):
                    _log.error("a loop did not end cleanly", exc_info=fault, extra=self._ids)
            self._announce(EventKind.WORKER_STOPPED, self._why)
        if self._patrol is not None:
            self._patrol.cancel()
        if self._blocked is not None:
            self._blocked.stop()
        self._offload.stop()
        try:
            await asyncio.wait_for(self._report.sink.flush(), _FLUSH_WITHIN_S)
        except Exception:  # noqa: BLE001 - events are advisory, the end of a worker is not
            _log.warning("the last events were not flushed", exc_info=True, extra=self._ids)
        if self._door is not None:
            await self._door.stop()
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
            self._why = f"recycled: {reason}"
            self.ask_to_stop(ExitCode.RECYCLED)

    async def _walk(self) -> None:
        """Look around once a second, for as long as the worker lives."""
        while True:
            await asyncio.sleep(_PATROL_S)
            try:
                if reason := self._recycle.memory():
                    self._retire(reason)
                for name in await self._deaf.look() if self._deaf is not None else ():
                    self._announce(EventKind.WORKER_UNHEALTHY, f"source {name} is deaf")
            except Exception:  # noqa: BLE001 - whoever watches must not be the first to fall
                _log.exception("the patrol stumbled", extra=self._ids)

    def _announce(self, kind: EventKind, note: str = "") -> None:
        for protocol in self._protocols:
            self._report.of_worker(kind, protocol, note)
