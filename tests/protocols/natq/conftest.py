"""A natq of each test's own on the shared server: other names, the same wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.entry import Operation, operation_of
from penstock.broker.link import Link
from penstock.broker.message import parse_ack_subject
from penstock.broker.options import NatsOptions
from penstock.core.events import Silent
from penstock.core.ids import uuid7
from penstock.core.registry import Registry
from penstock.core.task import Task
from penstock.protocols.natq.client import NatqClient
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.room import Room
from penstock.protocols.natq.wire import decode_output
from penstock.protocols.natq.worker import JobSource, NatqWorker, open_worker
from penstock.runtime.options import WorkerOptions
from penstock.runtime.worker import Worker

if TYPE_CHECKING:
    from penstock.broker.embedded import EmbeddedNats


@pytest.fixture
def options(unique: str) -> NatqOptions:
    return NatqOptions(
        tasks_bucket=f"{unique}_tasks",
        results_bucket=f"{unique}_results",
        stream=f"{unique}_jobs",
        sync_prefix=f"{unique}.req.",
        async_prefix=f"{unique}.job.",
        dead_stream=f"{unique}_dead",
        dead_prefix=f"{unique}.dead.",
        large_bucket=f"{unique}_large",
        checkpoints_bucket=f"{unique}_checkpoints",
    )


@pytest.fixture
async def room(link: Link, options: NatqOptions) -> Room:
    return await Room.open(link, options)


@pytest.fixture
async def client(link: Link, options: NatqOptions) -> NatqClient:
    return await NatqClient.open(link, options)


def a_task(fn: Callable[..., Any] | None = None, **how: Any) -> Task:
    """A declared task; called ``job`` unless told otherwise."""

    async def job(**fields: Any) -> dict[str, Any]:
        return fields

    return Registry().add(fn or job, **{"name": "job", **how})


@pytest.fixture
async def make_source(
    room: Room,
) -> AsyncIterator[Callable[..., Any]]:
    """Bound sources that are stopped after the test."""
    made: list[JobSource] = []

    async def make(task: Task | None = None, worker_id: str = "w-1", **how: Any) -> JobSource:
        source = JobSource(room, task or a_task(**how), worker_id)
        await source.bind()
        made.append(source)
        return source

    yield make
    for source in made:
        await source.stop()


class Story:
    """What is said about jobs and results, in the order the server heard it.

    ``put 100``, ``gone``, ``ACK``, ``NAK 2``, ``TERM why``, ``WPI``.
    """

    def __init__(self, options: NatqOptions) -> None:
        self.words: list[str] = []
        self._stream = options.stream
        self._results = f"$KV.{options.results_bucket}.>"
        self._changed = asyncio.Event()

    async def listen(self, link: Link) -> None:
        await link.subscribe(self._results, self._on_put)
        await link.subscribe("$JS.ACK.>", self._on_ack)
        await link.flush()

    async def until(self, *words: str, within: float = 20.0) -> list[str]:
        """Wait until each of ``words`` was said (as a beginning), then give the whole story."""

        def told() -> bool:
            return all(any(said.startswith(word) for said in self.words) for word in words)

        try:
            async with asyncio.timeout(within):
                while not told():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"waited for {words}, heard {self.words}") from None
        return self.words

    def _on_put(
        self, _subject: bytes, _reply: bytes | None, headers: bytes | None, payload: bytes
    ) -> None:
        gone = operation_of(headers) is not Operation.PUT
        self._hear("gone" if gone else f"put {decode_output(payload).status}")

    def _on_ack(
        self, subject: bytes, _reply: bytes | None, _headers: bytes | None, payload: bytes
    ) -> None:
        if parse_ack_subject(subject).stream != self._stream:
            return
        verb, _, rest = payload.decode().partition(" ")
        if verb == "-NAK":
            rest = f"{json.loads(rest)['delay'] / 1e9:g}" if rest else "0"
        self._hear(f"{verb.lstrip('+-') or 'ACK'} {rest}".strip())

    def _hear(self, word: str) -> None:
        self.words.append(word)
        self._changed.set()


@pytest.fixture
async def story(link: Link, options: NatqOptions) -> Story:
    told = Story(options)
    await told.listen(link)
    return told


class Serving:
    """A worker in this process, on a link of its own, as an application would run it."""

    def __init__(self, link: Link, served: NatqWorker, worker: Worker) -> None:
        self.link = link
        self.room = served.room
        self.worker = worker

    @classmethod
    async def start(
        cls, url: str, tasks: Sequence[Task], options: NatqOptions, **how: Any
    ) -> Serving:
        link = await Link.open(NatsOptions.from_url(url))
        worker_id = uuid7()
        served = await open_worker(link, tasks, options, worker_id)
        worker = Worker(
            {task.name: task for task in tasks},
            served.sources,
            served.doors,
            options=WorkerOptions(**{"idle_wait": timedelta(seconds=0.5), **how}),
            sink=Silent(),
            worker_id=worker_id,
        )
        await worker.start()
        await link.flush()  # so that the server knows of every subscription
        return cls(link, served, worker)

    async def stop(self, grace: timedelta = timedelta(seconds=10)) -> None:
        await self.worker.stop(grace)
        await self.room.settle_errands()
        await self.link.close(drain=False)


Serve = Callable[..., Awaitable[Serving]]


@pytest.fixture
async def serve(nats_server: EmbeddedNats, options: NatqOptions) -> AsyncIterator[Serve]:
    """Start workers for some tasks; whatever still runs is stopped after the test."""
    running: list[Serving] = []

    async def start(*tasks: Task, options: NatqOptions = options, **how: Any) -> Serving:
        url = how.pop("url", nats_server.url)
        running.append(await Serving.start(url, tasks, options, **how))
        return running[-1]

    yield start
    for serving in running:
        await serving.stop(timedelta(0))


SECOND = timedelta(seconds=1)
