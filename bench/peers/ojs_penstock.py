"""Penstock on Open Job Spec: over HTTP, straight over NATS, and at work for an application.

The HTTP client is a cheap one of the bench's own: prepared bytes on keep-alive connections, and
just enough reading to find where an answer ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from time import monotonic, perf_counter
from typing import Any
from urllib.parse import urlsplit

from bench.kit.run import Run
from penstock import App
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.protocols.ojs.client import OjsClient
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.fields import object_of
from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.requests import AckRequest, FetchRequest
from penstock.protocols.ojs.worker import sources_of
from penstock.runtime import heap
from penstock.runtime.options import WorkerOptions
from penstock.runtime.worker import Worker

QUEUE = "bench"
JOB = b'{"type":"noop","args":[1],"options":{"queue":"bench"}}'

app = App("bench")
waits: list[float] = []


@app.task(queue=QUEUE)
async def noop(n: int) -> int:
    return n


@app.task(queue=QUEUE)
async def stamp(at: float) -> None:
    waits.append(monotonic() - at)


async def _link(run: Run) -> Link:
    return await Link.open(NatsOptions.from_url(run.url))


async def _engine(run: Run, **options: Any) -> Engine:
    return await Engine.open(await _link(run), OjsOptions(**options))


# Straight over NATS -------------------------------------------------------------------


async def load(run: Run) -> None:
    """Jobs that wait, ``loaded`` of them, and ``stored`` that are over."""
    async with await OjsClient.open(await _link(run)) as client:
        await _put(client, "noop", run.options.get("loaded", run.count), QUEUE)
    if run.options.get("stored"):
        engine = await _engine(run)
        async with engine, await OjsClient.open(engine.shared.room.link) as client:
            await _put(client, "noop", run.options["stored"], "old")
            while jobs := await engine.fetch(FetchRequest(queues=("old",), count=1000)):
                await asyncio.gather(*(engine.ack(AckRequest(job_id=j.id)) for j in jobs))


async def _put(client: OjsClient, kind: str, count: int, queue: str) -> None:
    for start in range(0, count, 1000):
        jobs = [(kind, [n]) for n in range(start, min(start + 1000, count))]
        await client.enqueue_many(jobs, queue=queue)


async def drain(run: Run) -> None:
    """From the start of a worker until the last job is acknowledged."""
    engine = await _engine(run)
    heap.settle()
    worker = _worker(engine, run)
    with run.measure():
        await worker.start()
        while worker.metrics.counts().get(("ojs", "noop", "succeeded"), 0) < run.count:
            await asyncio.sleep(0.002)
    await worker.stop()
    await engine.close()


def _worker(engine: Engine, run: Run) -> Worker:
    tasks = list(app.registry)
    options = WorkerOptions(concurrency=run.options.get("concurrency", 256), signals=False)
    sources = sources_of(engine, tasks, "bench")
    return Worker({task.name: task for task in tasks}, sources, (), options, worker_id="bench")


async def life(run: Run) -> None:
    """Whole lives, 64 at once: enqueue, fetch, acknowledge."""
    engine = await _engine(run)
    left = iter(range(run.count))

    async def live(_: Iterator[int]) -> None:
        for _number in left:
            made = await engine.push(engine.submission(object_of(JOB)))
            assert not isinstance(made, Exception)
            handed: list[Record] = []
            while not handed:
                handed = await engine.fetch(FetchRequest(queues=(QUEUE,)))
            done = await engine.ack(AckRequest(job_id=handed[0].id))
            assert isinstance(done, Record), done

    with run.measure():
        await asyncio.gather(*(live(left) for _ in range(run.options["at_once"])))
    await engine.close()


async def latency(run: Run) -> None:
    """From the call of enqueue to the first line of the handler, at half of what it can do."""
    engine = await _engine(run)
    worker = _worker(engine, run)
    await worker.start()
    async with await OjsClient.open(await _link(run)) as client:
        with run.measure() as meter:
            began = monotonic()
            async with asyncio.TaskGroup() as group:
                for n in range(run.count):
                    await asyncio.sleep(began + n / run.options["per_second"] - monotonic())
                    group.create_task(client.enqueue("stamp", [monotonic()], queue=QUEUE))
            while len(waits) < run.count:
                await asyncio.sleep(0.002)
        meter.latencies_s = waits
    await worker.stop()
    await engine.close()


# Over HTTP ----------------------------------------------------------------------------


async def serve(run: Run) -> None:
    """A server process; its address goes through NATS to whoever asks."""
    from penstock.protocols.ojs.http.serving import open_face
    from penstock.web.server import HttpServer

    engine = await _engine(run)
    async with open_face(engine) as face, HttpServer(face) as server:
        link = engine.shared.room.link
        await link.subscribe("bench.where", _answering(link, server.url.encode()))
        await link.flush()
        heap.settle()
        run.ready()
        await asyncio.Event().wait()


def _answering(link: Link, url: bytes) -> Any:
    def answer(_subject: bytes, reply: bytes | None, _headers: Any, _payload: bytes) -> None:
        assert reply is not None  # it is asked
        link.publish(reply, url)

    return answer


class Connection:
    """One keep-alive connection; a request is answered before the next is sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str) -> Connection:
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def post(self, path: str, body: bytes) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nhost: b\r\ncontent-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        status = int(answer[9:12])
        at = answer.lower().index(b"content-length:") + 15
        size = int(answer[at : answer.index(b"\r\n", at)])
        found = await self._reader.readexactly(size)
        assert status < 300, (status, found[:300])
        return found


async def http_enqueue(run: Run) -> None:
    await _over_http(run, _enqueue_one)


async def http_life(run: Run) -> None:
    await _over_http(run, _live_one)


async def http_batches(run: Run) -> None:
    """Non-atomic enqueueing, fetching and acknowledging of 100 at a time."""
    await _over_http(run, _live_hundred, per_turn=100)


async def _enqueue_one(connection: Connection) -> None:
    await connection.post("/ojs/v1/jobs", JOB)


async def _live_one(connection: Connection) -> None:
    await connection.post("/ojs/v1/jobs", JOB)
    jobs: list[dict[str, Any]] = []
    while not jobs:
        answer = await connection.post("/ojs/v1/workers/fetch", b'{"queues":["bench"]}')
        jobs = json.loads(answer)["jobs"]
    await connection.post("/ojs/v1/workers/ack", json.dumps({"job_id": jobs[0]["id"]}).encode())


HUNDRED = b'{"atomicity":"partial","jobs":[' + b",".join([JOB] * 100) + b"]}"


async def _live_hundred(connection: Connection) -> None:
    await connection.post("/ojs/v1/jobs/bulk", HUNDRED)
    left = 100
    while left:
        asked = json.dumps({"queues": [QUEUE], "count": left}).encode()
        jobs = json.loads(await connection.post("/ojs/v1/workers/fetch", asked))["jobs"]
        if jobs:
            acks = {"acks": [{"job_id": job["id"]} for job in jobs]}
            await connection.post("/ojs/v1/workers/ack", json.dumps(acks).encode())
        left -= len(jobs)


async def _over_http(run: Run, turn: Any, per_turn: int = 1) -> None:
    async with run.helper("bench.peers.ojs_penstock:serve") as pid:
        link = await _link(run)
        url = (await link.request(b"bench.where", b"")).payload.decode()
        at_once = run.options["at_once"]
        connections = [await Connection.open(url) for _ in range(at_once)]
        turns = iter(range(run.count // per_turn))
        spent: list[float] = []

        async def go_on(connection: Connection) -> None:
            for _ in turns:
                began = perf_counter()
                await turn(connection)
                spent.append(perf_counter() - began)

        with run.measure(pids=[pid]) as meter:
            await asyncio.gather(*map(go_on, connections))
        meter.latencies_s = spent
        await link.close()
