"""A consumer whose Redis forgets, restarts or is killed goes on, and loses nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
import redis as redis_py

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.broker.redis_port import RedisLost
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.context import JobContext
from tests.protocols.omniq.invariants import check_invariants

JOBS = 1500


@pytest.mark.parametrize("way", ["restart", "kill"])
async def test_a_server_that_goes_away_under_load_loses_nothing_it_acknowledged(
    fresh_redis: EmbeddedRedis, queue: str, way: str
) -> None:
    """The server syncs every write (``aof="always"``)."""
    seen: Counter[int] = Counter()

    async def handler(ctx: JobContext) -> None:
        await asyncio.sleep(0)
        seen[ctx.payload["n"]] += 1

    async with OmniqClient(fresh_redis.url, timeout=60) as client:
        consumer = client.consumer(queue, handler, concurrency=16)
        running = asyncio.create_task(consumer.run())
        publishing = asyncio.create_task(publish_all(client, queue))
        for part in (1, 2):
            await reached(seen, part * JOBS // 4)
            await asyncio.to_thread(getattr(fresh_redis, way))
            await asyncio.to_thread(fresh_redis.start)
        await publishing
        await reached(seen, JOBS, within_s=120)
        consumer.stop()
        async with asyncio.timeout(60):
            await running

        counts = await client.monitor.counts(queue)
        assert (counts.wait, counts.active, counts.delayed, counts.failed) == (0, 0, 0, 0)
    assert set(seen) == set(range(JOBS))
    with redis_py.Redis.from_url(fresh_redis.url, decode_responses=True) as raw:
        check_invariants(raw, queue)


async def publish_all(client: OmniqClient, queue: str) -> None:
    """Each under an id of its own, so that it may be said again when no answer came."""
    for n in range(JOBS):
        while True:
            try:
                await client.publish(queue, {"n": n}, job_id=str(n), timeout_ms=2000, backoff_ms=1)
                break
            except RedisLost:
                continue


async def reached(seen: Counter[int], count: int, within_s: float = 60) -> None:
    async with asyncio.timeout(within_s):
        while len(seen) < count:
            await asyncio.sleep(0.005)


async def test_scripts_may_be_flushed_under_a_consumer(
    fresh_redis: EmbeddedRedis, queue: str
) -> None:
    seen: Counter[int] = Counter()

    async def handler(ctx: JobContext) -> None:
        seen[ctx.payload["n"]] += 1

    with redis_py.Redis.from_url(fresh_redis.url) as raw:
        async with OmniqClient(fresh_redis.url) as client:
            consumer = client.consumer(queue, handler, concurrency=4)
            running = asyncio.create_task(consumer.run())
            for n in range(200):
                await client.publish(queue, {"n": n})
                raw.script_flush()
            await reached(seen, 200)
            consumer.stop()
            await running

    assert set(seen.values()) == {1}


async def test_a_lease_outlives_an_outage_shorter_than_its_term(
    fresh_redis: EmbeddedRedis, queue: str
) -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    attempts: list[int] = []

    async def handler(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        entered.set()
        await release.wait()

    async with OmniqClient(fresh_redis.url, timeout=60) as client:
        await client.publish(queue, {}, job_id="x", timeout_ms=60_000)
        consumer = client.consumer(queue, handler, heartbeat_interval_s=0.05)
        running = asyncio.create_task(consumer.run())
        await entered.wait()

        await asyncio.to_thread(fresh_redis.restart)
        release.set()
        async with asyncio.timeout(60):
            while (await client.monitor.counts(queue)).completed == 0:
                await asyncio.sleep(0.01)
        consumer.stop()
        await running

    assert attempts == [1]


@pytest.mark.parametrize("skew_s", [-600, 600])
async def test_a_machine_with_a_wrong_clock_keeps_leases_and_due_times_right(
    fresh_redis: EmbeddedRedis, queue: str, skew_s: int, monkeypatch: Any
) -> None:
    """Without an override every instant is the server's."""
    import time

    right_ms = OmniqClient.now_ms
    truly = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: truly() + skew_s * 1_000_000_000)
    seen: list[str] = []

    async def handler(ctx: JobContext) -> None:
        seen.append(ctx.job_id)
        if ctx.attempt == 1:
            raise ValueError("once")

    async with OmniqClient(fresh_redis.url) as client:
        await client.publish(queue, {}, job_id="a", backoff_ms=200)
        await client.publish(queue, {}, job_id="later", due_ms=truly() // 1_000_000 + 60_000)
        job = await client.reserve(queue)
        assert job is not None
        server_ms = truly() // 1_000_000
        assert abs(job.lock_until_ms - 60_000 - server_ms) < 30_000  # type: ignore[union-attr]
        assert abs(right_ms() - server_ms) > 500_000
        assert await client.reap_expired(queue) == 0
        assert await client.promote_delayed(queue) == 0
        await client.ack_fail(queue, "a", job.lease_token)  # type: ignore[union-attr]

        consumer = client.consumer(queue, handler)
        running = asyncio.create_task(consumer.run())
        async with asyncio.timeout(60):
            while not seen:
                await asyncio.sleep(0.01)
        consumer.stop()
        await running

        assert seen == ["a"]
        assert (await client.monitor.counts(queue)).delayed == 1
