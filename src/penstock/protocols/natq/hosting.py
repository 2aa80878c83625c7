"""Running an upstream-style worker on our runtime: where the two meet, inside this room."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from penstock.broker.binary import check_server
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.core.events import Silent
from penstock.protocols.natq.worker import NatqWorker as Served
from penstock.protocols.natq.worker import open_worker
from penstock.runtime.options import WorkerOptions
from penstock.runtime.worker import Worker

if TYPE_CHECKING:
    from penstock.protocols.natq.upstream import NatqWorker

__all__ = ["Hosted", "host"]


class Hosted:
    """A link and a running worker, ended together: by `stop`, or by SIGTERM or SIGINT."""

    def __init__(self, link: Link, served: Served, worker: Worker, bridge: _LogBridge) -> None:
        self._link = link
        self._served = served
        self._worker = worker
        self._bridge = bridge
        self._life = asyncio.get_running_loop().create_task(self._live(), name="natq:worker")

    async def stop(self) -> None:
        """Drain, close, and return when both are done. Safe to repeat."""
        self._worker.ask_to_stop()
        await self.wait()

    async def wait(self) -> None:
        """Return when the worker has ended, for whatever reason."""
        await asyncio.shield(self._life)

    async def _live(self) -> None:
        try:
            await self._worker.run()
        finally:
            await self._served.room.settle_errands()
            await self._link.close()
            self._bridge.remove()


async def host(upstream: NatqWorker, nats: str | NatsOptions) -> Hosted:
    """Start ``upstream``; whatever was opened is closed again when that fails."""
    options = nats if isinstance(nats, NatsOptions) else NatsOptions.from_url(nats)
    bridge = _LogBridge(upstream)
    link: Link | None = None
    try:
        link = await Link.open(options)
        await check_server(link)
        tasks = [registered.task for registered in upstream.registry.values()]
        served = await open_worker(
            link,
            tasks,
            upstream.options.to_natq(),
            upstream.worker_id,
            {name: registered.definition for name, registered in upstream.registry.items()},
        )
        worker = Worker(
            {task.name: task for task in tasks},
            served.sources,
            served.doors,
            options=WorkerOptions(
                concurrency=upstream.options.max_concurrency,
                requests=upstream.options.max_requests,
            ),
            sink=Silent(),
            worker_id=upstream.worker_id,
        )
        await worker.start()
    except BaseException:
        bridge.remove()
        if link is not None:
            await link.close()
        raise
    return Hosted(link, served, worker, bridge)


class _LogBridge(logging.Handler):
    """Passes our log lines to the logger that upstream's user gave."""

    _LOGGERS = ("penstock",)

    def __init__(self, upstream: NatqWorker) -> None:
        super().__init__(int(upstream.options.level))
        self._to = upstream.logger
        self._worker_id = upstream.worker_id
        for name in self._LOGGERS:
            logger = logging.getLogger(name)
            logger.addHandler(self)
            logger.setLevel(min(logger.level or logging.INFO, int(upstream.options.level)))

    def remove(self) -> None:
        for name in self._LOGGERS:
            logging.getLogger(name).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        speaker = getattr(record, "workerId", self._worker_id)
        if speaker != self._worker_id:  # of another worker in this process
            return
        fields: dict[str, Any] = {"workerId": self._worker_id}
        for name in ("taskId", "runId"):
            if (value := getattr(record, name, None)) is not None:
                fields[name] = value
        say = {logging.DEBUG: self._to.debug, logging.INFO: self._to.info}.get(
            record.levelno, self._to.warn if record.levelno < logging.ERROR else self._to.error
        )
        say(record.getMessage(), **fields)
