"""Consuming a queue with one handler: the helper of the contract, on our runtime.

``concurrency`` jobs at once, heartbeats for all of them from one timer, an end and the next
lease in one call, and no polling while the queue is empty. Whatever the handler raises is a
failed attempt, unless it says otherwise (`Retry`, `Reject`, `Snooze`).

Stopping (`stop`, SIGTERM, SIGINT): with ``drain`` what runs may finish, however long that
takes, and a second signal gives it back; without, it is given back at once. What is given
back is ready again at the front of its line and has not used up an attempt.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from penstock.core.binding import Binding
from penstock.core.context import Context
from penstock.core.errors import ConfigError
from penstock.core.events import Silent
from penstock.core.ids import uuid7
from penstock.core.outcome import Done, HandlerSays
from penstock.core.task import RunsIn, Task
from penstock.protocols.omniq.context import Exec, JobContext
from penstock.protocols.omniq.options import OmniqOptions
from penstock.protocols.omniq.worker import QueueSource
from penstock.runtime.options import WorkerOptions
from penstock.runtime.signals import StopSignals
from penstock.runtime.worker import Worker

if TYPE_CHECKING:
    from penstock.protocols.omniq.client import OmniqClient

__all__ = ["Consumer", "Consuming", "Handler", "How"]

Handler = Callable[[JobContext], Any]

_FOR_EVER: Final = timedelta(days=365)
_log = logging.getLogger("penstock.omniq")


class _Numbers(TypedDict, total=False):
    poll_interval_s: float
    promote_interval_s: float
    promote_batch: int
    reap_interval_s: float
    reap_batch: int
    heartbeat_interval_s: float | None


class How(_Numbers, total=False):
    """How a queue is consumed. Names and units are those of other SDKs."""

    concurrency: int
    drain: bool
    verbose: bool
    logger: logging.Logger | None


class Consuming:
    """The same, checked."""

    def __init__(
        self,
        *,
        concurrency: int = 1,
        drain: bool = True,
        verbose: bool = False,
        logger: logging.Logger | None = None,
        **numbers: Unpack[_Numbers],
    ) -> None:
        for name, value in {"concurrency": concurrency, **numbers}.items():
            if isinstance(value, int | float) and value <= 0:
                raise ConfigError(f"{name} is {value}", remedy="give more than 0.")
        self.concurrency = concurrency
        self.drain = drain
        self.logger = logger or _log
        self.verbose = verbose
        rounds_s = (numbers.get("promote_interval_s", 1.0), numbers.get("reap_interval_s", 1.0))
        self.options = OmniqOptions(
            poll=timedelta(seconds=numbers.get("poll_interval_s", 0.05)),
            upkeep=timedelta(seconds=min(rounds_s)),
            promote_batch=numbers.get("promote_batch", 1000),
            reap_batch=numbers.get("reap_batch", 1000),
            heartbeat=timedelta(seconds=numbers.get("heartbeat_interval_s") or 10.0),
        )


class Consumer:
    """``await consumer.run()`` until it is stopped. `stop` may be called from any thread."""

    def __init__(self, client: OmniqClient, queue: str, handler: Handler, how: Consuming) -> None:
        self._client = client
        self._queue = queue
        self._handler = handler
        self._how = how
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._stop_asked = asyncio.Event()

    async def run(self) -> None:
        """Consume until `stop`, SIGTERM or SIGINT (the latter in the main thread only)."""
        self._loop = asyncio.get_running_loop()
        with StopSignals() as signals:
            signals.tell(self._signalled)
            worker = self._worker = await self._made()
            try:
                if not self._stopped:
                    await worker.start()
                    await self._stop_asked.wait()
            finally:
                await self._end(worker)

    def stop(self) -> None:
        """End `run` as ``drain`` says. Safe to repeat, before the start too."""
        self._stopped = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop_asked.set)

    async def _end(self, worker: Worker) -> None:
        if not self._how.drain:
            worker.force()
        await worker.stop(_FOR_EVER if self._how.drain else timedelta(0))

    def _signalled(self, _number: int) -> None:
        if not self._stopped:
            self.stop()
        elif self._worker is not None:
            self._worker.force()

    async def _made(self) -> Worker:
        await self._client.port()
        worker_id = uuid7()
        task = self._task()
        source = QueueSource(
            self._client, self._queue, task.name, self._how.options, holder=worker_id, raw=True
        )
        return Worker(
            {task.name: task},
            [source],
            options=WorkerOptions(concurrency=self._how.concurrency),
            sink=Silent(),
            worker_id=worker_id,
            protocols=("omniq",),
        )

    def _task(self) -> Task:
        """The handler as the runtime takes it."""
        is_async = _is_async(self._handler)
        fn = self._in_loop() if is_async else self._in_thread()
        return Task(
            name=self._queue,
            fn=fn,
            binding=Binding.of(fn, shape="whole"),
            runs_in=RunsIn.LOOP if is_async else RunsIn.THREAD,
        )

    def _in_loop(self) -> Callable[..., Any]:
        handler, client = self._handler, self._client
        say = self._say if self._how.verbose else _silent

        async def run(payload: Any, context: Context) -> Any:
            ctx = JobContext(context, payload, Exec(client, context.run_id, None))
            say("started", ctx)
            said = _said(await handler(ctx))
            say("ended", ctx)
            return said

        return run

    def _in_thread(self) -> Callable[..., Any]:
        handler, client = self._handler, self._client
        say = self._say if self._how.verbose else _silent
        loop = asyncio.get_running_loop()

        def run(payload: Any, context: Context) -> Any:
            ctx = JobContext(context, payload, Exec(client, context.run_id, loop))
            say("started", ctx)
            said = handler(ctx)
            if inspect.iscoroutine(said):  # a lambda or partial around an async function
                said = asyncio.run_coroutine_threadsafe(said, loop).result()
            say("ended", ctx)
            return _said(said)

        return run

    def _say(self, what: str, ctx: JobContext) -> None:
        self._how.logger.info(
            "job %s of queue %s %s, attempt %d", ctx.job_id, ctx.queue, what, ctx.attempt
        )


def _silent(_what: str, _ctx: JobContext) -> None:
    return


def _said(value: Any) -> Any:
    """Results are nobody's in OmniQ; only what a handler says about the job counts."""
    return value if isinstance(value, HandlerSays | Done) else None


def _is_async(handler: Handler) -> bool:
    target = handler if inspect.isroutine(handler) else getattr(handler, "func", handler)
    call = target if inspect.isroutine(target) else type(target).__call__
    return inspect.iscoroutinefunction(call)
