"""Several instances answer as one: order, pauses, limits, and nobody missed when one is gone."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

from msgspec import Raw

from penstock.protocols.ojs.client import OjsClient
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.queues import parse_queue_config
from penstock.protocols.ojs.refusal import Refused

from .conftest import OpenEngine, until
from .stories import ack, asked, beat, fetch, info, push, state, take

import pytest  # isort: skip


async def a_pair(open_engine: OpenEngine) -> tuple[Engine, Engine]:
    a, b = await open_engine(), await open_engine()
    await until(lambda: not a.peers.alone and not b.peers.alone)
    return a, b


async def test_priority_holds_over_what_either_instance_took_in(open_engine: OpenEngine) -> None:
    a, b = await a_pair(open_engine)
    for round_ in range(5):
        ids = {}
        for n, priority in enumerate((0, 9, -9, 5)):
            record = await push((a, b)[n % 2], priority=priority, queue=f"q{round_}")
            ids[priority] = record.id
        got = [(await fetch((a, b)[n % 2], f"q{round_}"))[0].id for n in range(4)]
        assert got == [ids[p] for p in (9, 5, 0, -9)]


async def test_two_instances_share_out_a_queue_without_losing_or_doubling(
    open_engine: OpenEngine,
) -> None:
    a, b = await a_pair(open_engine)
    pushed = await a.push_many([asked(a, args=[n]) for n in range(200)])
    assert isinstance(pushed, list)
    got: Counter[str] = Counter()

    async def work(engine: Engine) -> None:
        while records := await fetch(engine, count=7):
            got.update(r.id for r in records)
            await asyncio.gather(*(ack(engine, r.id) for r in records))

    await asyncio.gather(work(a), work(b), work(a), work(b))
    assert len(got) == 200 and set(got.values()) == {1}
    assert (await b.queue("default")).counts["completed"] == 200


async def test_a_pause_holds_everywhere_at_once(open_engine: OpenEngine) -> None:
    a, b = await a_pair(open_engine)
    await push(a)
    for _ in range(5):
        await a.pause("default")
        assert await fetch(b) == []
        await b.resume("default")
        record = (await fetch(a))[0]
        await a.give_back([record])


async def test_a_limit_holds_over_instances(open_engine: OpenEngine) -> None:
    a, b = await a_pair(open_engine)
    for n in range(6):
        await push((a, b)[n % 2], rate_limit={"key": "one", "concurrency": 2})
    hands = await asyncio.gather(*(fetch(e, count=2) for e in (a, b, a, b)))
    running = [r for hand in hands for r in hand]
    assert len(running) == 2
    await ack(b, running[0].id)
    assert len(await fetch(a, count=5)) == 1


async def test_when_the_owner_is_gone_without_a_word_others_go_on(open_engine: OpenEngine) -> None:
    a, b = await a_pair(open_engine)
    await push(a, queue="q")
    await fetch(a, "q")
    assert await fetch(b, "q") == []
    for subscription in a.peers._subscriptions:  # deaf, as a dead process is
        await subscription.unsubscribe()
    record = await push(b, queue="q")
    assert (await take(b, "q")).id == record.id


async def test_a_producer_without_an_index_hears_that_a_queue_is_full(
    open_engine: OpenEngine,
) -> None:
    engine = await open_engine()
    await engine.configure("small", parse_queue_config({"max_size": Raw(b"2")}))
    async with await OjsClient.open(engine.shared.room.link) as client:
        await until(lambda: client._engine.shared.queues.of("small"))
        await client.enqueue("job", queue="small")
        await client.enqueue("job", queue="small")
        with pytest.raises(Refused) as told:
            await client.enqueue("job", queue="small")
    assert told.value.refusal.code == "QUEUE_FULL"


async def test_jobs_of_a_worker_that_fell_silent_are_taken_back(open_engine: OpenEngine) -> None:
    engine = await open_engine(heartbeat_timeout=timedelta(milliseconds=300))
    record = await push(engine)
    await take(engine, worker="w1")
    await beat(engine, "w1", record.id)
    again = await take(engine, worker="w2")
    assert again.id == record.id
    assert b"worker_death" in bytes((await info(engine, record.id)).job.errors[-1])


async def test_who_hangs_up_before_the_answer_gives_the_jobs_back(engine: Engine) -> None:
    record = await push(engine)
    held = await take(engine)
    await engine.give_back([held])
    await engine.give_back([held])
    assert await state(engine, record.id) == "available"
    again = await take(engine)
    assert (again.job.attempt, again.counted) == (2, 1)
