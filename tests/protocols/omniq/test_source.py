"""A queue as a source of work: idle without polling, fused turns, nothing kept that is not run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.broker.redis_port import RedisLost
from penstock.core.delivery import Settled, SettledKind, SourceLost
from penstock.core.outcome import Done, Interrupted
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.job import Job
from penstock.protocols.omniq.store import Settle, Turn
from penstock.protocols.omniq.worker import QueueSource

LONG = timedelta(seconds=20)
AT_ONCE = timedelta(0)


@pytest.fixture
async def source(redis_server: EmbeddedRedis, queue: str) -> AsyncIterator[QueueSource]:
    async with OmniqClient(redis_server.url) as client:
        made = QueueSource(client, queue, "job")
        yield made
        await made.stop()


def ids(jobs: Sequence[Job]) -> list[str]:
    return [job.invocation.work_id for job in jobs]


def scripts_run(raw: Any) -> int:
    return int(raw.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


async def asleep(raw: Any) -> None:
    """Until somebody's client tracking remembers a key: the source listens."""
    async with asyncio.timeout(10):
        while not raw.info("stats")["tracking_total_keys"]:
            await asyncio.sleep(0.01)


def publish_as_others(raw: Any, queue: str, gid: str | None = None) -> None:
    """What another SDK's script does to the keys, without a word to us."""
    job = {"id": "x", "payload": "{}", "state": "wait", "attempt": 0, "max_attempts": 3}
    raw.hset(
        f"{{{queue}}}:job:x", mapping={**job, "timeout_ms": 9000, **({"gid": gid} if gid else {})}
    )
    raw.rpush(f"{{{queue}}}:g:{gid}:wait" if gid else f"{{{queue}}}:wait", "x")
    if gid:
        raw.zadd(f"{{{queue}}}:groups:ready", {gid: 1})


@pytest.mark.parametrize("gid", [None, "g"])
async def test_an_idle_source_is_woken_by_a_publisher_that_knows_nothing_of_it(
    fresh_redis: EmbeddedRedis, queue: str, gid: str | None
) -> None:
    import redis

    with redis.Redis.from_url(fresh_redis.url, decode_responses=True) as raw:
        async with OmniqClient(fresh_redis.url) as client:
            source = QueueSource(client, queue, "job")
            taking = asyncio.create_task(source.take(1, LONG))
            await asleep(raw)

            publish_as_others(raw, queue, gid)

            async with asyncio.timeout(10):
                assert ids(await taking) == ["x"]
            await source.stop()


async def test_an_idle_source_runs_no_scripts_but_its_rounds(
    fresh_redis: EmbeddedRedis, queue: str
) -> None:
    import redis

    with redis.Redis.from_url(fresh_redis.url, decode_responses=True) as raw:
        async with OmniqClient(fresh_redis.url) as client:
            source = QueueSource(client, queue, "job")
            taking = asyncio.create_task(source.take(1, timedelta(seconds=3)))
            await asleep(raw)
            before = scripts_run(raw)

            assert not await taking

            assert scripts_run(raw) - before <= 5
            await source.stop()


async def test_hundreds_of_short_takes_of_an_idle_queue_ask_once(
    source: QueueSource, queue: str
) -> None:
    """A worker with more queues than slots looks at each for a moment, again and again."""
    calls = 0
    really = source.client.turn

    async def counted(*args: Any, **options: Any) -> Turn:
        nonlocal calls
        calls += 1
        return await really(*args, **options)

    source.client.turn = counted  # type: ignore[method-assign]

    for _ in range(100):
        assert not await source.take(1, timedelta(milliseconds=1))
    asked = calls
    await source.client.publish(queue, {}, job_id="x")
    async with asyncio.timeout(10):
        while not (jobs := await source.take(1, timedelta(milliseconds=1))):
            continue

    assert asked < 10
    assert ids(jobs) == ["x"]
    await jobs[0].settle(Done())


async def test_a_paused_queue_is_slept_through_and_resume_wakes(
    source: QueueSource, queue: str
) -> None:
    await source.client.publish(queue, {}, job_id="x")
    await source.client.pause(queue)
    assert not await source.take(1, timedelta(seconds=0.2))
    taking = asyncio.create_task(source.take(1, LONG))

    await source.client.resume(queue)

    assert ids(await taking) == ["x"]


async def test_ending_a_job_fetches_the_next_one_in_the_same_call(
    source: QueueSource, queue: str
) -> None:
    await source.client.publish_many(queue, [{} for _ in range(4)])
    calls: list[tuple[int, int]] = []
    really = source.client.turn

    async def counted(queue: str, ends: Sequence[Settle] = (), **options: Any) -> Turn:
        calls.append((len(ends), options["count"]))
        return await really(queue, ends, **options)

    source.client.turn = counted  # type: ignore[method-assign]

    for _ in range(4):
        (job,) = await source.take(1, LONG)
        await job.settle(Done())

    assert calls == [(0, 1), (1, 1), (1, 1), (1, 1), (1, 1)]


async def test_what_was_fetched_ahead_for_nobody_is_given_back(
    source: QueueSource, queue: str
) -> None:
    names = await source.client.publish_many(queue, [{} for _ in range(3)])
    (job,) = await source.take(1, LONG)
    await job.settle(Done())  # the second comes along, and nobody takes it

    async with asyncio.timeout(10):
        while (await source.client.monitor.counts(queue)).active:
            await asyncio.sleep(0.01)

    left = await source.take(2, LONG)
    assert ids(left) == names[1:]  # in their order
    assert [(one.invocation.attempt, one.invocation.delivery) for one in left] == [(1, 2), (1, 1)]
    for one in left:
        await one.settle(Interrupted())


async def test_stopping_wakes_a_sleeper_and_leaves_no_lease(
    source: QueueSource, queue: str
) -> None:
    taking = asyncio.create_task(source.take(1, LONG))
    await asyncio.sleep(0)

    await source.stop()

    async with asyncio.timeout(10):
        assert not await taking
    await source.client.publish(queue, {})
    assert not await source.take(1, AT_ONCE)
    assert (await source.client.monitor.counts(queue)).active == 0


async def test_an_end_whose_answer_was_lost_is_told_again_and_recognised(
    source: QueueSource, queue: str
) -> None:
    await source.client.publish(queue, {}, job_id="x")
    (job,) = await source.take(1, LONG)
    really = source.client.turn

    async def unheard(queue: str, ends: Sequence[Settle] = (), **options: Any) -> Turn:
        await really(queue, ends, **options)
        source.client.turn = really  # type: ignore[method-assign]
        raise RedisLost("the answer was lost")

    source.client.turn = unheard  # type: ignore[method-assign]

    settlement = await job.settle(Done())

    assert isinstance(settlement, Settled)
    assert settlement.kind is SettledKind.SUCCEEDED
    assert (await source.client.monitor.counts(queue)).completed == 1


@pytest.mark.parametrize("attempts", [1, 3])
async def test_leases_whose_granting_was_not_heard_are_found_again(
    source: QueueSource, queue: str, attempts: int
) -> None:
    names = await source.client.publish_many(queue, [{}, {}, {}], max_attempts=attempts)
    really = source.client.turn

    async def unheard(queue: str, ends: Sequence[Settle] = (), **options: Any) -> Turn:
        await really(queue, ends, **options)
        source.client.turn = really  # type: ignore[method-assign]
        raise RedisLost("the answer was lost")

    source.client.turn = unheard  # type: ignore[method-assign]

    with pytest.raises(SourceLost):
        await source.take(3, LONG)
    jobs = await source.take(3, LONG)

    assert ids(jobs) == names
    assert {job.invocation.attempt for job in jobs} == {1}
    for job in jobs:
        await job.settle(Done())
    assert (await source.client.monitor.counts(queue)).completed == 3


async def test_a_turn_that_was_sent_and_not_run_gives_nothing_twice(
    source: QueueSource, queue: str
) -> None:
    names = await source.client.publish_many(queue, [{}, {}])
    (first,) = await source.take(1, LONG)
    really = source.client.turn

    async def never_ran(*_: Any, **__: Any) -> Turn:
        source.client.turn = really  # type: ignore[method-assign]
        raise RedisLost("broken before it was sent")

    source.client.turn = never_ran  # type: ignore[method-assign]

    with pytest.raises(SourceLost):
        await source.take(1, LONG)
    (second,) = await source.take(2, LONG)

    assert ids([first, second]) == names
    await first.settle(Done())
    await second.settle(Done())


async def test_ids_without_a_job_are_passed_over(source: QueueSource, queue: str, raw: Any) -> None:
    raw.rpush(f"{{{queue}}}:wait", *(f"ghost-{n}" for n in range(250)))
    await source.client.publish(queue, {}, job_id="x")

    assert ids(await source.take(1, LONG)) == ["x"]


async def test_beats_that_fall_due_together_travel_together(
    source: QueueSource, queue: str
) -> None:
    await source.client.publish_many(queue, [{} for _ in range(5)])
    jobs = await source.take(5, LONG)
    calls: list[int] = []
    really = source.client.heartbeat_many

    async def counted(queue: str, leases: Any, **options: Any) -> Any:
        calls.append(len(leases))
        return await really(queue, leases, **options)

    source.client.heartbeat_many = counted  # type: ignore[method-assign]

    await asyncio.gather(*(job.renew() for job in jobs))

    assert calls == [5]
    await asyncio.gather(*(job.settle(Done()) for job in jobs))


async def test_a_retry_is_promoted_when_it_is_due_not_a_second_later(
    source: QueueSource, queue: str
) -> None:
    await source.client.publish(queue, {}, job_id="x", due_ms=source.client.now_ms() + 300)

    (job,) = await source.take(1, LONG)

    assert job.invocation.work_id == "x"
    await job.settle(Done())
