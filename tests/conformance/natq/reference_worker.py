"""A natq worker as the upstream Python SDK is documented to behave, on the stock client.

It is what the conformance suite is developed against (``compat`` must be full, and the
known weaknesses must show in ``strict``) and the baseline of the benchmark, so it keeps
the upstream's manners on purpose: one job at a time per task, one request at a time per
task, no queue group, a final record that is lost is lost, a deleted consumer ends the
loop. Left out: the thirty seconds its drain hangs at the end.

`reference_tasks` gives it handlers and makes it a program.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import nats
import nats.errors
import nats.js.errors
import uuid_utils
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, DiscardPolicy, RetentionPolicy

__all__ = ["Output", "ReferenceWorker", "Run"]

log = logging.getLogger("natq.reference")


@dataclass(frozen=True, slots=True)
class Run:
    """One execution as a handler sees it; ``data`` lacks the reserved members."""

    data: dict[str, Any]
    run_id: Any
    task_id: str
    worker_id: str
    drop_result_on_success: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """What a handler answers."""

    status: int
    data: Any = None
    error: str | None = None


Handler = Callable[[Run], Awaitable[Output]]


class Unreadable(Exception):
    """The input is not JSON."""


class ReferenceWorker:
    """Register handlers, `start`, `stop`; or `serve` until SIGTERM."""

    def __init__(self, *, heartbeat_seconds: float = 10.0) -> None:
        self.worker_id = str(uuid_utils.uuid7())
        self._heartbeat_seconds = heartbeat_seconds
        self._handlers: dict[str, tuple[str, Handler]] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._client: Any = None
        self._js: Any = None
        self._results: Any = None

    def register(self, task_id: str, kind: str, handler: Handler) -> None:
        """``kind`` is ``sync`` or ``async``."""
        self._handlers[task_id] = (kind, handler)

    async def start(self, url: str) -> None:
        self._client = await nats.connect(url, error_cb=_log_error)
        self._js = self._client.jetstream()
        tasks = await _bucket(self._js, "natq_tasks")
        jobs = [task_id for task_id, (kind, _) in self._handlers.items() if kind == "async"]
        if jobs:
            self._results = await _bucket(self._js, "natq_results")
            await _stream(self._js)
        for task_id, (kind, _) in self._handlers.items():
            await tasks.put(task_id, json.dumps({"id": task_id, "type": kind}).encode())
        for task_id, (kind, handler) in self._handlers.items():
            if kind == "sync":
                await self._client.subscribe(
                    f"natq.req.{task_id}", cb=self._answering(task_id, handler)
                )
        for task_id in jobs:
            await _consumer(self._js, task_id)
            loop = self._work(task_id, self._handlers[task_id][1])
            self._loops.append(asyncio.create_task(loop, name=f"jobs:{task_id}"))

    async def stop(self) -> None:
        """Running jobs are cancelled without a NAK, as upstream."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._client.close()

    async def serve(self, url: str) -> None:
        over = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, over.set)
        await self.start(url)
        await over.wait()
        await self.stop()

    # -- requests ---------------------------------------------------------------------

    def _answering(self, task_id: str, handler: Handler) -> Callable[[Msg], Awaitable[None]]:
        async def answer(message: Msg) -> None:
            try:
                output = await self._executed(task_id, handler, message.data)
                body = b"" if output.data is None else json.dumps(output.data).encode()
            except Exception as error:
                log.error("request failed: %r", error)
                output, body = Output(500, error="Internal server error"), b""
            headers = {"status": str(output.status)}
            if output.error:
                headers["error"] = output.error
            await self._client.publish(message.reply, body, headers=headers)

        return answer

    async def _executed(self, task_id: str, handler: Handler, raw: bytes) -> Output:
        try:
            return await self._handled(handler, self._read(task_id, raw))
        except Unreadable:
            return Output(406, error="Invalid JSON input")

    # -- jobs -------------------------------------------------------------------------

    async def _work(self, task_id: str, handler: Handler) -> None:
        pull = await self._js.pull_subscribe_bind(_durable(task_id), stream="natq_jobs")
        while True:
            try:
                messages = await pull.fetch(1, timeout=5)
            except (TimeoutError, nats.errors.TimeoutError):
                continue
            except nats.js.errors.APIError as error:
                if error.code == 409 and "Consumer Deleted" in (error.description or ""):
                    log.error("loop of %s ends: %r", task_id, error)
                    return
                continue
            except nats.errors.Error as error:
                log.warning("pull of %s: %r", task_id, error)
                await asyncio.sleep(0.5)
                continue
            try:
                await self._job(task_id, handler, messages[0])
            except Exception as error:
                log.error("job of %s: %r", task_id, error)
                await messages[0].nak(delay=5)

    async def _job(self, task_id: str, handler: Handler, message: Msg) -> None:
        try:
            run = self._read(task_id, message.data)
        except Unreadable:
            await message.term()
            return
        key = f"{task_id}.{run.run_id}"
        await self._put(key, {"id": run.run_id, "taskId": task_id, "status": 100})
        heart = asyncio.create_task(self._beat(message), name=f"heartbeat:{key}")
        try:
            output = await self._handled(handler, run)
        finally:
            heart.cancel()
        await self._settle(message, key, run, output)

    async def _settle(self, message: Msg, key: str, run: Run, output: Output) -> None:
        """Record first, then ACK or TERM; from 500 on nothing is recorded."""
        if output.status >= 500:
            await message.nak(delay=min(2**message.metadata.num_delivered, 60))
            return
        await self._put(key, _record(run, output))
        if output.status >= 300:
            await message.term()
            return
        await message.ack()
        if run.drop_result_on_success:
            await self._results.delete(key)

    async def _beat(self, message: Msg) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            await message.in_progress()

    async def _put(self, key: str, record: dict[str, Any]) -> None:
        try:
            await self._results.put(key, json.dumps(record).encode())
        except Exception as error:
            log.error("record %s is lost: %r", key, error)

    # -- both -------------------------------------------------------------------------

    def _read(self, task_id: str, raw: bytes) -> Run:
        try:
            said = json.loads(raw)
        except ValueError as error:
            raise Unreadable from error
        run_id = said.pop("runId", None) or str(uuid_utils.uuid7())
        drop = bool(said.pop("dropResultOnSuccess", False))
        return Run(said, run_id, task_id, self.worker_id, drop)

    async def _handled(self, handler: Handler, run: Run) -> Output:
        """An exception becomes a 500; returning nothing stays the caller's trouble."""
        try:
            output = await handler(run)
        except Exception as error:
            return Output(500, error=f"Unhandled exception: {error}")
        if not isinstance(output, Output):
            raise TypeError(f"the handler of {run.task_id} returned {output!r}")
        return output


def _record(run: Run, output: Output) -> dict[str, Any]:
    record: dict[str, Any] = {"id": run.run_id, "taskId": run.task_id, "status": output.status}
    if output.data is not None:
        record["data"] = output.data
    if output.error is not None:
        record["error"] = output.error
    return record


def _durable(task_id: str) -> str:
    return f"natq_worker_{task_id}"


async def _bucket(js: JetStreamContext, name: str) -> Any:
    with contextlib.suppress(nats.js.errors.NotFoundError):
        return await js.key_value(name)
    return await js.create_key_value(bucket=name, history=1)


async def _stream(js: JetStreamContext) -> None:
    with contextlib.suppress(nats.js.errors.NotFoundError):
        await js.stream_info("natq_jobs")
        return
    await js.add_stream(
        name="natq_jobs",
        subjects=["natq.job.>"],
        retention=RetentionPolicy.WORK_QUEUE,
        discard=DiscardPolicy.NEW,
    )


async def _consumer(js: JetStreamContext, task_id: str) -> None:
    with contextlib.suppress(nats.js.errors.NotFoundError):
        await js.consumer_info("natq_jobs", _durable(task_id))
        return
    config = ConsumerConfig(
        durable_name=_durable(task_id),
        filter_subject=f"natq.job.{task_id}",
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.ALL,
    )
    await js.add_consumer("natq_jobs", config)


async def _log_error(error: Exception) -> None:
    log.warning("connection: %r", error)
