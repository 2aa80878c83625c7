"""Workers of ours beside workers that behave as the upstream SDKs do, on the same consumers.

The reference worker takes one job at a time and keeps no attempt count; ours runs jobs side
by side and writes what it needs into the records. Neither may disturb the other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.config import ConsumerConfig, ConsumerInfo
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.core.context import Context
from penstock.protocols.natq.client import NatqClient
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.wire import consumer_name
from tests.conformance.natq.reference_worker import Output, ReferenceWorker, Run
from tests.protocols.natq.conftest import SECOND, Serve, Serving, Story, a_task

if TYPE_CHECKING:
    from penstock.broker.embedded import EmbeddedNats

Handler = Callable[[Run], Awaitable[Output]]


@pytest.fixture
def options() -> NatqOptions:
    return NatqOptions()  # the names that all SDKs share, on a server of the test's own


@dataclass
class Fleet:
    """One server, a client, and as many workers of each kind as a test wants."""

    url: str
    client: NatqClient
    serve: Serve
    story: Story
    theirs: list[ReferenceWorker] = field(default_factory=list)

    async def add_ours(self, *tasks: Any, **how: Any) -> Serving:
        return await self.serve(*tasks, url=self.url, **how)

    async def add_theirs(self, **handlers: Handler) -> ReferenceWorker:
        worker = ReferenceWorker(heartbeat_seconds=0.5)
        for name, handler in handlers.items():
            kind, _, task_id = name.partition("_")
            worker.register(task_id, kind, handler)
        await worker.start(self.url)
        self.theirs.append(worker)
        return worker

    async def consumer(self) -> ConsumerInfo:
        return await self.client.room.jetstream.consumer_info("natq_jobs", consumer_name("job"))

    async def prepare(self, ack_wait: timedelta) -> None:
        """A consumer that somebody made with a short ack wait, so that a death is noticed soon."""
        config = ConsumerConfig(
            durable_name=consumer_name("job"),
            filter_subject="natq.job.job",
            ack_policy="explicit",
            ack_wait=ack_wait,
        )
        await self.client.room.jetstream.ensure_consumer("natq_jobs", config)


@pytest.fixture
async def fleet(fresh_nats: EmbeddedNats, serve: Serve) -> AsyncIterator[Fleet]:
    link = await Link.open(NatsOptions.from_url(fresh_nats.url))
    story = Story(NatqOptions())
    await story.listen(link)
    made = Fleet(fresh_nats.url, await NatqClient.open(link), serve, story)
    yield made
    for worker in made.theirs:
        await worker.stop()
    await link.close(drain=False)


class Ledger:
    """Who ran which job, and how often."""

    def __init__(self, job_s: float = 0.0) -> None:
        self.ours: Counter[int] = Counter()
        self.theirs: Counter[int] = Counter()
        self._job_s = job_s

    async def our_job(self, n: int) -> dict[str, Any]:
        self.ours[n] += 1
        await asyncio.sleep(self._job_s)
        return {"n": n, "by": "ours"}

    async def their_job(self, run: Run) -> Output:
        self.theirs[run.data["n"]] += 1
        await asyncio.sleep(self._job_s)
        return Output(200, {"n": run.data["n"], "by": "theirs"})


@pytest.mark.parametrize("first", ["ours", "theirs"])
async def test_they_share_the_jobs_each_runs_once_and_the_consumer_stays_as_it_was_made(
    fleet: Fleet, first: str
) -> None:
    ledger = Ledger(job_s=0.02)
    if first == "ours":
        await fleet.add_ours(a_task(ledger.our_job, name="job"), concurrency=2)
    else:
        await fleet.add_theirs(async_job=ledger.their_job)
    made = (await fleet.consumer()).config
    if first == "ours":
        await fleet.add_theirs(async_job=ledger.their_job)
    else:
        await fleet.add_ours(a_task(ledger.our_job, name="job"), concurrency=2)

    runs = [await fleet.client.enqueue("job", {"n": n}) for n in range(120)]
    found = await fleet.client.results(runs, timeout=60)

    assert ledger.ours + ledger.theirs == Counter(range(120))
    assert ledger.ours and ledger.theirs
    assert {found[run.run_id].data["n"] for run in runs} == set(range(120))
    assert {output.status for output in found.values()} == {200}
    assert fleet.story.words.count("put 100") == fleet.story.words.count("put 200") == 120
    assert (await fleet.consumer()).config == made
    assert made.max_deliver in (None, -1) and not made.backoff


async def test_a_job_that_failed_with_one_kind_is_finished_by_the_other(fleet: Fleet) -> None:
    """Their record counts nothing, so ours goes by the deliveries; and they by nothing at all."""
    seen: list[tuple[int, int]] = []

    async def their_job(run: Run) -> Output:
        return Output(500, error="not here")

    async def our_job(ctx: Context) -> str:
        seen.append((ctx.attempt, ctx.delivery))
        return "done"

    worker = await fleet.add_theirs(async_job=their_job)
    run = await fleet.client.enqueue("job")
    await fleet.story.until("NAK 2")
    await worker.stop()
    await fleet.add_ours(a_task(our_job, name="job"))

    assert await run.result(30) == "done"
    ((attempt, delivery),) = seen
    assert attempt == delivery >= 2


async def test_a_job_that_ours_failed_is_finished_by_theirs(fleet: Fleet) -> None:
    async def our_job() -> None:
        raise RuntimeError("not here")

    async def their_job(run: Run) -> Output:
        return Output(200, "done")

    ours = await fleet.add_ours(a_task(our_job, name="job"))
    run = await fleet.client.enqueue("job")
    await fleet.story.until("NAK 2")
    await ours.stop()
    await fleet.add_theirs(async_job=their_job)

    assert await run.result(30) == "done"
    told = [word for word in fleet.story.words if word[:3] == "put"]
    assert told == ["put 100", "put 100", "put 200"]


async def test_what_a_stopped_worker_of_theirs_leaves_behind_is_finished_by_ours(
    fleet: Fleet,
) -> None:
    """Upstream cancels its handlers at a stop and says nothing, so the ack wait has to pass."""
    await fleet.prepare(ack_wait=2 * SECOND)
    started = asyncio.Event()

    async def their_job(run: Run) -> Output:
        started.set()
        await asyncio.Event().wait()
        return Output(200)

    worker = await fleet.add_theirs(async_job=their_job)
    run = await fleet.client.enqueue("job", {"n": 7})
    await asyncio.wait_for(started.wait(), 20)
    await worker.stop()
    ledger = Ledger()
    await fleet.add_ours(a_task(ledger.our_job, name="job"))

    assert await run.result(30) == {"n": 7, "by": "ours"}


async def test_what_a_stopped_worker_of_ours_gives_back_is_finished_by_theirs_at_once(
    fleet: Fleet,
) -> None:
    started = asyncio.Event()

    async def our_job(n: int) -> None:
        started.set()
        await asyncio.Event().wait()

    ours = await fleet.add_ours(a_task(our_job, name="job"))
    run = await fleet.client.enqueue("job", {"n": 7})
    await asyncio.wait_for(started.wait(), 20)
    await ours.stop(0 * SECOND)
    ledger = Ledger()
    await fleet.add_theirs(async_job=ledger.their_job)

    assert await run.result(20) == {"n": 7, "by": "theirs"}  # well below the ack wait of 30 s


async def test_a_final_record_of_theirs_is_not_run_again_by_ours(fleet: Fleet) -> None:
    """A second message under its run id: ours finds what they have written, and changes nothing."""
    ledger = Ledger()
    worker = await fleet.add_theirs(async_job=ledger.their_job)
    run = await fleet.client.enqueue("job", {"n": 1})
    await run.result(20)
    await worker.stop()
    key = f"job.{run.run_id}"
    before = await fleet.client.room.results.get(key, leader=True)
    payload = b'{"runId":"%b","n":1}' % run.run_id.encode()
    await fleet.client.room.publisher.publish(b"natq.job.job", payload)
    fleet.story.words.clear()
    await fleet.add_ours(a_task(ledger.our_job, name="job"))

    await fleet.story.until("ACK")
    assert not ledger.ours
    assert await fleet.client.room.results.get(key, leader=True) == before
    assert await run.result(5) == {"n": 1, "by": "theirs"}


async def test_requests_are_answered_beside_workers_without_a_queue_group(fleet: Fleet) -> None:
    """Each of theirs runs every request, ours share one among them: the caller gets an answer."""
    ledger = Ledger()
    await fleet.add_theirs(sync_ask=ledger.their_job)
    for _ in range(2):
        await fleet.add_ours(a_task(ledger.our_job, name="ask", reply=True))

    answers = [await fleet.client.call("ask", {"n": n}) for n in range(20)]

    assert [answer["n"] for answer in answers] == list(range(20))
    async with asyncio.timeout(10):
        while ledger.ours != Counter(range(20)) or ledger.theirs != Counter(range(20)):
            await asyncio.sleep(0.01)


async def test_results_are_dropped_whoever_ran_the_job(fleet: Fleet) -> None:
    ledger = Ledger(job_s=0.01)
    await fleet.add_ours(a_task(ledger.our_job, name="job"), concurrency=1)
    await fleet.add_theirs(async_job=ledger.their_job)
    runs = [await fleet.client.enqueue("job", {"n": n}, drop_result=True) for n in range(40)]
    async with asyncio.timeout(30):
        while fleet.story.words.count("gone") < 40:
            await asyncio.sleep(0.01)

    assert ledger.ours + ledger.theirs == Counter(range(40))
    assert await fleet.client.room.results.keys() == []
    found = await fleet.client.results(runs, timeout=10)
    assert {output.status for output in found.values()} == {200}


async def test_either_definition_serves_the_other_s_clients(fleet: Fleet) -> None:
    """Theirs has no subject and no schemas; the last worker to start has the word."""
    ledger = Ledger()
    await fleet.add_theirs(async_job=ledger.their_job)
    bare = await fleet.client.task("job")
    await fleet.add_ours(a_task(ledger.our_job, name="job"))
    full = await fleet.client.task("job")

    assert (bare.id, bare.type, bare.subject) == ("job", "async", None)
    assert (full.subject, full.type) == ("natq.job.job", "async")
    assert full.input_schema is not None
