"""The same work on the stock nats-py client, as two people would write it.

``one_at_a_time`` is the documented behaviour of natq's own Python SDK, which is not on the
registry: it fetches one message, starts a heartbeat task, awaits the handler, and puts both
records one after the other. ``concurrent`` is what a careful user of nats-py writes: up to
256 jobs in flight, each a task that does the same steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic, perf_counter
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.kv import KeyValue

from bench.kit.run import Run

Handler = Callable[[dict[str, Any]], Awaitable[Any]]
_SLEEP_S = 0.01
_HEARTBEAT_S = 10.0


async def noop(data: dict[str, Any]) -> Any:
    return data["n"]


async def pause(data: dict[str, Any]) -> Any:
    await asyncio.sleep(_SLEEP_S)
    return data["n"]


waits: list[float] = []


async def stamp(data: dict[str, Any]) -> Any:
    waits.append(monotonic() - data["at"])
    return data["n"]


HANDLERS: dict[str, Handler] = {"noop": noop, "pause": pause, "stamp": stamp}


async def one_at_a_time(run: Run) -> None:
    client, js, records = await _open(run)
    task = run.options["task"]
    pulls = await _consumer(js, task)
    async with _measured(run, client):
        for _ in range(run.count):
            (message,) = await pulls.fetch(1, timeout=5)
            await _job(message, task, records, HANDLERS[task])
        await client.flush()
    await client.close()


async def concurrent(run: Run) -> None:
    client, js, records = await _open(run)
    task = run.options["task"]
    pulls = await _consumer(js, task)
    limit = run.options.get("concurrency", 256)
    running: set[asyncio.Task[None]] = set()
    async with _measured(run, client):
        taken = 0
        while taken < run.count:
            if len(running) >= limit:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                continue
            messages = await pulls.fetch(min(limit - len(running), run.count - taken), timeout=5)
            taken += len(messages)
            for message in messages:
                job = asyncio.create_task(_job(message, task, records, HANDLERS[task]))
                running.add(job)
                job.add_done_callback(running.discard)
        while running:
            await asyncio.wait(running)
        await client.flush()
    await client.close()


@asynccontextmanager
async def _measured(run: Run, client: Client) -> AsyncIterator[None]:
    """The measured section; where the scenario has a producer, it enqueues meanwhile."""
    async with AsyncExitStack() as stack:
        if "producer" in run.options:
            await stack.enter_async_context(run.helper(run.options["producer"]))
        meter = stack.enter_context(run.measure())
        await client.publish("bench.go")
        yield
    meter.latencies_s = waits


async def _job(message: Msg, task: str, records: KeyValue, handler: Handler) -> None:
    data = json.loads(message.data)
    run_id = data.pop("runId")
    key = f"{task}.{run_id}"
    await records.put(key, json.dumps({"id": run_id, "taskId": task, "status": 100}).encode())
    beating = asyncio.create_task(_heartbeat(message))
    try:
        value = await handler(data)
    finally:
        beating.cancel()
    final = {"id": run_id, "taskId": task, "status": 200, "data": value}
    await records.put(key, json.dumps(final).encode())
    await message.ack()


async def _heartbeat(message: Msg) -> None:
    while True:
        await asyncio.sleep(_HEARTBEAT_S)
        await message.in_progress()


async def answer(run: Run) -> None:
    """A bare echo, without task ids, headers or checks; a helper process."""
    client = await nats.connect(run.url)

    async def reply(message: Msg) -> None:
        await message.respond(message.data)

    await client.subscribe("natq.req.echo", cb=reply)
    await client.flush()
    run.ready()
    await asyncio.Event().wait()


async def ask(run: Run) -> None:
    async with run.helper(run.options["answerer"]) as pid:
        client = await nats.connect(run.url)
        waits: list[float] = []

        async def one_after_the_other(numbers: Iterator[int]) -> None:
            for n in numbers:
                began = perf_counter()
                answer = await client.request("natq.req.echo", b'{"n":%d}' % n, timeout=30)
                waits.append(perf_counter() - began)
                assert answer.data

        await one_after_the_other(iter(range(200)))
        waits.clear()
        shared = iter(range(run.count))
        with run.measure(pids=[pid]) as meter:
            many = run.options["at_once"]
            await asyncio.gather(*(one_after_the_other(shared) for _ in range(many)))
        meter.latencies_s = waits
        await client.close()


async def enqueue(run: Run) -> None:
    """Jobs with run id and message id through ``publish_async``, the client's pipelined way."""
    client, js = await _with_stream(run, pending=1024)
    with run.measure():
        answers = []
        for n in range(run.count):
            run_id = str(uuid.uuid4())
            payload = json.dumps({"n": n, "runId": run_id}).encode()
            headers = {"Nats-Msg-Id": f"noop.{run_id}"}
            answers.append(await js.publish_async("natq.job.noop", payload, headers=headers))
            if len(answers) >= 1024:
                await asyncio.gather(*answers)
                answers.clear()
        await asyncio.gather(*answers)
    await client.close()


async def _open(run: Run) -> tuple[Client, JetStreamContext, KeyValue]:
    client = await nats.connect(run.url)
    js = client.jetstream(timeout=30)
    return client, js, await js.key_value("natq_results")


async def _with_stream(run: Run, pending: int) -> tuple[Client, JetStreamContext]:
    client = await nats.connect(run.url)
    js = client.jetstream(timeout=30, publish_async_max_pending=pending)
    with contextlib.suppress(nats.js.errors.BadRequestError):
        await js.add_stream(name="natq_jobs", subjects=["natq.job.>"], retention="workqueue")
    return client, js


async def _consumer(js: JetStreamContext, task: str) -> JetStreamContext.PullSubscription:
    return await js.pull_subscribe(
        f"natq.job.{task}", durable=f"natq_worker_{task}", stream="natq_jobs"
    )
