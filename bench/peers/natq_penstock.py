"""Penstock on natq: loading the queue, draining it, answering, enqueueing.

The worker is the one `penstock worker` runs, with its defaults but for the concurrency that
the scenario gives to everybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from time import monotonic, perf_counter

from bench.kit.run import Run
from penstock import App
from penstock.broker.event_stream import EventStream
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.core.events import Silent
from penstock.protocols.natq.client import Job, NatqClient
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.worker import open_worker
from penstock.runtime import heap
from penstock.runtime.options import WorkerOptions
from penstock.runtime.worker import Worker

app = App("bench")
_SLEEP_S = 0.01


@app.task
async def noop(n: int) -> int:
    return n


@app.task
async def pause(n: int) -> int:
    await asyncio.sleep(_SLEEP_S)
    return n


waits: list[float] = []


@app.task
async def stamp(n: int, at: float) -> int:
    waits.append(monotonic() - at)
    return n


@app.task(reply=True)
async def echo(n: int) -> int:
    return n


def jobs(task: str, count: int) -> Iterator[Job]:
    return (Job(task, {"n": n}) for n in range(count))


async def load(run: Run) -> None:
    """Fill the queue of one task, for whoever drains it."""
    link = await _connect(run)
    client = await NatqClient.open(link)
    count = run.options.get("loaded", run.count)
    report = await client.enqueue_many(jobs(run.options["task"], count))
    assert report.complete and report.stored == count, report
    await link.close()


async def drain(run: Run) -> None:
    """From the first pull until the last job is acknowledged and the server has read it all."""
    link = await _connect(run)
    task = run.options["task"]
    worker = await _worker(link, task, run)
    heap.settle()
    async with producer(run):
        with run.measure() as meter:
            await worker.start()
            link.publish(GO)
            while worker.metrics.counts().get(("natq", task, "succeeded"), 0) < run.count:
                await asyncio.sleep(0.002)
            await link.flush()
    meter.latencies_s = waits
    await worker.stop()
    await link.close()


GO = b"bench.go"


@asynccontextmanager
async def producer(run: Run) -> AsyncIterator[None]:
    """A helper that enqueues while the worker works, where the scenario has one."""
    if "producer" in run.options:
        async with run.helper(run.options["producer"]):
            yield
    else:
        yield


async def trickle(run: Run) -> None:
    """Enqueue ``stamp`` jobs at a steady pace once told to go, each with its own instant."""
    link = await _connect(run)
    client = await NatqClient.open(link)
    told = asyncio.Event()
    await link.subscribe(GO.decode(), lambda *_: told.set())
    await link.flush()
    run.ready()
    await told.wait()
    began = monotonic()
    async with asyncio.TaskGroup() as group:
        for n in range(run.count):
            await asyncio.sleep(began + n / run.options["per_second"] - monotonic())
            group.create_task(client.enqueue("stamp", {"n": n, "at": monotonic()}))


async def answer(run: Run) -> None:
    """The worker's half of request and reply; a helper process."""
    link = await _connect(run)
    worker = await _worker(link, "echo", run)
    heap.settle()
    await worker.start()
    await link.flush()
    run.ready()
    await asyncio.Event().wait()


async def ask(run: Run) -> None:
    """Ask as many at a time as the scenario says, all through our client."""
    async with run.helper(run.options["answerer"]) as pid:
        link = await _connect(run)
        client = await NatqClient.open(link)
        waits: list[float] = []

        async def one_after_the_other(numbers: Iterator[int]) -> None:
            for n in numbers:
                began = perf_counter()
                value = await client.call("echo", {"n": n})
                waits.append(perf_counter() - began)
                assert value == n

        await one_after_the_other(iter(range(200)))
        waits.clear()
        shared = iter(range(run.count))
        with run.measure(pids=[pid]) as meter:
            many = run.options["at_once"]
            await asyncio.gather(*(one_after_the_other(shared) for _ in range(many)))
        meter.latencies_s = waits
        await link.close()


async def enqueue(run: Run) -> None:
    """Jobs with run id and message id, each stored before it counts."""
    link = await _connect(run)
    client = await NatqClient.open(link)
    with run.measure():
        report = await client.enqueue_many(jobs("noop", run.count))
    assert report.complete and report.stored == run.count, report
    await link.close()


async def _connect(run: Run) -> Link:
    return await Link.open(NatsOptions.from_url(run.url))


async def _worker(link: Link, task: str, run: Run) -> Worker:
    chosen = app.registry.get(task)
    options = WorkerOptions(concurrency=run.options.get("concurrency", 256), signals=False)
    sink = await EventStream.open(link) if run.options.get("events") else Silent()
    served = await open_worker(link, [chosen], NatqOptions(), "bench")
    for source in served.sources:  # the stock workers' consumers are made beforehand too
        await source.bind()
    return Worker({task: chosen}, served.sources, served.doors, options, sink, worker_id="bench")
