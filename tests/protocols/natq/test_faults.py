"""What a worker and a producer do when the ground moves under them; kills are told elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.broker.config import ConsumerConfig
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.broker.publisher import Stored
from penstock.core.errors import BadInput
from penstock.core.outcome import Done
from penstock.protocols.natq.client import NatqClient, Run
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.wire import TaskDefinition, TaskType, consumer_name
from tests.chaos.proxy import FaultProxy
from tests.protocols.natq.conftest import SECOND, Serve, Story, a_task

if TYPE_CHECKING:
    from penstock.broker.embedded import EmbeddedNats


class Ledger:
    """Which jobs ran how often; they wait at the gate."""

    def __init__(self, *, open: bool = True) -> None:
        self.ran: Counter[int] = Counter()
        self.gate = asyncio.Event()
        if open:
            self.gate.set()

    async def job(self, n: int) -> int:
        self.ran[n] += 1
        await self.gate.wait()
        return n

    async def has_run(self, count: int) -> None:
        async with asyncio.timeout(30):
            while sum(self.ran.values()) < count:
                await asyncio.sleep(0.01)


async def some(client: NatqClient, count: int) -> list[Run]:
    return [await client.enqueue("job", {"n": n}) for n in range(count)]


async def values(client: NatqClient, runs: list[Run]) -> list[Any]:
    found = await client.results(runs, timeout=60)
    return [found[run.run_id].data for run in runs]


# Things that are taken away -----------------------------------------------------------------


async def test_a_consumer_that_is_deleted_is_made_again_and_meanwhile_the_worker_says_so(
    serve: Serve, client: NatqClient, options: NatqOptions, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger()
    serving = await serve(a_task(ledger.job))
    assert await values(client, await some(client, 3)) == [0, 1, 2]

    await client.room.jetstream.delete_consumer(options.stream, consumer_name("job"))
    runs = await some(client, 5)

    assert await values(client, runs) == [0, 1, 2, 3, 4]
    assert "is lost" in caplog.text
    async with asyncio.timeout(20):
        while not serving.worker.health().ok:
            await asyncio.sleep(0.01)


async def test_a_stream_that_is_deleted_is_made_again(
    serve: Serve, client: NatqClient, options: NatqOptions
) -> None:
    ledger = Ledger()
    await serve(a_task(ledger.job))
    await values(client, await some(client, 1))
    await client.room.jetstream.delete_stream(options.stream)
    async with asyncio.timeout(30):
        while options.stream not in await client.room.jetstream.stream_names():
            await asyncio.sleep(0.02)

    assert await values(client, await some(client, 3)) == [0, 1, 2]


async def test_a_results_bucket_that_is_deleted_is_made_again_and_no_result_is_lost(
    serve: Serve, client: NatqClient, options: NatqOptions
) -> None:
    ledger = Ledger(open=False)
    await serve(a_task(ledger.job))
    running = await some(client, 2)
    await ledger.has_run(2)
    await client.room.jetstream.delete_stream(f"KV_{options.results_bucket}")
    later = await some(client, 2)
    await ledger.has_run(4)
    ledger.gate.set()

    for n, run in enumerate((*running, *later)):
        assert await run.result(30) == n % 2


# Words that get lost ------------------------------------------------------------------------


async def test_a_link_that_is_cut_while_a_result_is_waited_for_brings_it_all_the_same(
    nats_server: EmbeddedNats, serve: Serve, options: NatqOptions
) -> None:
    ledger = Ledger(open=False)
    await serve(a_task(ledger.job))
    async with FaultProxy.to(nats_server.url) as proxy:
        link = await Link.open(NatsOptions.from_url(proxy.url))
        client = await NatqClient.open(link, options)
        run = await client.enqueue("job", {"n": 7})
        waiter = asyncio.create_task(run.result(60))
        await ledger.has_run(1)
        proxy.refuse()
        ledger.gate.set()
        async with asyncio.timeout(20):
            while link.is_connected:
                await asyncio.sleep(0.01)
        proxy.heal()

        assert await waiter == 7
        await link.close(drain=False)


async def test_a_worker_that_was_cut_off_for_longer_than_the_ack_wait_settles_nothing_twice(
    nats_server: EmbeddedNats, serve: Serve, client: NatqClient, options: NatqOptions, story: Story
) -> None:
    quick = ConsumerConfig(
        durable_name=consumer_name("job"),
        filter_subject=f"{options.async_prefix}job",
        ack_policy="explicit",
        ack_wait=2 * SECOND,
    )
    await client.room.jetstream.ensure_consumer(options.stream, quick)
    ledger = Ledger(open=False)
    async with FaultProxy.to(nats_server.url) as proxy:
        first = await serve(a_task(ledger.job), url=proxy.url)
        run = await client.enqueue("job", {"n": 7})
        await ledger.has_run(1)
        proxy.refuse()
        other = Ledger()
        await serve(a_task(other.job))
        assert await run.result(30) == 7
        entry = await client.room.results.get(f"job.{run.run_id}", leader=True)
        proxy.heal()
        ledger.gate.set()

        late = await client.enqueue("job", {"n": 8})  # both workers are there again
        assert await late.result(30) == 8
        await first.stop()
    assert await client.room.results.get(f"job.{run.run_id}", leader=True) == entry
    assert (ledger.ran[7], other.ran[7]) == (1, 1)
    assert story.words.count("ACK") == 2  # a late put was refused, if there was one


async def test_two_messages_of_one_run_id_on_two_workers_run_once(
    serve: Serve, client: NatqClient, options: NatqOptions, story: Story
) -> None:
    ledger = Ledger(open=False)
    await serve(a_task(ledger.job), concurrency=1)
    await serve(a_task(ledger.job), concurrency=1)
    subject = f"{options.async_prefix}job".encode()
    for _ in range(2):  # without a message id, so that the stream takes both
        stored = await client.room.publisher.publish(subject, b'{"runId":"twin","n":1}')
        assert isinstance(stored, Stored)
    await story.until("ACK")  # the second one's
    ledger.gate.set()

    assert await client.result("job", "twin", 20) == 1
    assert ledger.ran == Counter({1: 1})
    async with asyncio.timeout(20):
        while story.words.count("ACK") < 2:
            await asyncio.sleep(0.01)


# Refusals -----------------------------------------------------------------------------------


async def test_a_full_results_bucket_does_not_keep_a_job_from_running(
    serve: Serve, client: NatqClient, options: NatqOptions, story: Story,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """As the protocol says: a failed put is logged; the job runs and is acknowledged."""
    stream = f"KV_{options.results_bucket}"
    made = (await client.room.jetstream.stream_info(stream)).config
    full = msgspec.structs.replace(made, max_bytes=1)
    await client.room.jetstream.ensure_stream(full, update=True)
    ledger = Ledger()
    serving = await serve(a_task(ledger.job))
    with caplog.at_level(logging.ERROR, "penstock.natq"):
        await client.enqueue("job", {"n": 1}, run_id="r-1")
        await story.until("ACK")

    assert ledger.ran == Counter({1: 1})
    told = [one for one in caplog.records if "was not written" in one.getMessage()]
    assert len(told) == 2  # the processing record, and the final one
    assert {(one.workerId, one.runId) for one in told} == {(serving.worker.id, "r-1")}  # type: ignore[attr-defined]


# Producers ------------------------------------------------------------------------------------


async def test_a_task_that_moved_to_another_subject_is_found_again(
    client: NatqClient, link: Link, unique: str
) -> None:
    async def serve_at(subject: str, answer: bytes) -> Any:
        definition = TaskDefinition("mover", TaskType.SYNC, subject)
        await client.room.tasks.put("mover", msgspec.json.encode(definition))
        return await link.subscribe(
            subject,
            lambda _s, reply, _h, _p: link.publish(
                reply or b"", answer, headers=b"status: 200\r\n"
            ),
        )

    here = await serve_at(f"{unique}.here", b"1")
    assert await client.call("mover") == 1
    await here.unsubscribe()
    await serve_at(f"{unique}.there", b"2")

    assert await client.call("mover") == 2


async def test_a_task_that_changed_its_kind_is_told_with_the_right_verb(
    client: NatqClient, serve: Serve
) -> None:
    async def job() -> Done:
        return Done(1)

    serving = await serve(a_task(job, reply=True))
    assert await client.call("job") == 1
    await serving.stop()
    await serve(a_task(job))

    with pytest.raises(BadInput, match="it takes jobs, not calls"):
        await client.call("job")
    await serve(a_task(job, reply=True))  # and back again
    assert await client.call("job") == 1


async def test_results_of_two_tasks_that_share_a_run_id_are_not_mixed_up(
    client: NatqClient,
) -> None:
    runs = [Run(client, "one", "r"), Run(client, "two", "r")]

    with pytest.raises(BadInput, match="share a run id"):
        await client.results(runs, timeout=1)
