"""What a job costs does not depend on how many others wait: counted in commands, not in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_py

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.store import Settle
from penstock.protocols.omniq.wire import Compat
from tests.protocols.omniq.stories import leased

A_LOT = 200_000
# What Redis does in a time that is constant, or logarithmic in the size of a sorted set.
_CHEAP = """
evalsha eval exists get set del incr decr time script|load pexpire mget
hset hget hmget hdel hincrby hrandfield rpush lpush lpop rpop llen
zadd zrem zscore zcard zpopmin zrange zrangebyscore
"""
CHEAP = frozenset(_CHEAP.split())


@pytest.fixture
def raw_fresh(fresh_redis: EmbeddedRedis) -> Iterator[Any]:
    with redis_py.Redis.from_url(fresh_redis.url, decode_responses=True) as raw:
        yield raw


@pytest.mark.parametrize(
    ("compat", "waiting"),
    [
        ("v1", 5_000),
        ("v4", 5_000),
        pytest.param("v1", A_LOT, marks=pytest.mark.slow),
        pytest.param("v4", A_LOT, marks=pytest.mark.slow),
    ],
)
async def test_every_hot_call_costs_the_same_however_many_wait(
    fresh_redis: EmbeddedRedis, raw_fresh: Any, queue: str, compat: Compat, waiting: int
) -> None:
    async with OmniqClient(fresh_redis.url, compat=compat, timeout=60) as client:
        await crowd(client, queue, 10)
        await a_life(client, queue)  # the scripts are known from now on
        few = await commands_of(raw_fresh, client, queue)
        await crowd(client, queue, waiting)
        many = await commands_of(raw_fresh, client, queue)

    assert many == few
    assert set(many) <= CHEAP


async def crowd(client: OmniqClient, queue: str, count: int) -> None:
    """Jobs that wait: half of them in groups, some delayed."""
    jobs = [{"n": n} for n in range(count // 2)]
    await client.publish_many(queue, jobs)
    await client.publish_many(queue, jobs, gid="crowd")
    later = client.now_ms() + 3_600_000
    await client.publish_many(queue, jobs[: count // 20], due_ms=later)


async def commands_of(raw: Any, client: OmniqClient, queue: str) -> dict[str, int]:
    """How often each command ran in one life of a job."""
    raw.config_resetstat()
    await a_life(client, queue)
    stats = raw.info("commandstats")
    own = {"info", "config", "config|resetstat", "command", "client", "hello"}
    names = {name.removeprefix("cmdstat_"): fact["calls"] for name, fact in stats.items()}
    return {name: calls for name, calls in names.items() if name not in own}


async def a_life(client: OmniqClient, queue: str) -> None:
    """Every call of the hot path, on a job of each lane."""
    for _ in range(2):  # once grouped, once not: the lanes take turns
        await client.publish(queue, {})
        job = await leased(client, queue)
        await client.heartbeat(queue, job.job_id, job.lease_token)
        await client.checkpoint(queue, job.job_id, job.lease_token, b"half")
        await client.settle(queue, [Settle.release(job.job_id, job.lease_token)])
        turn = await client.turn(queue, count=1)
        (again,) = turn.jobs
        retry = Settle.retry(again.job_id, again.lease_token, delay_ms=0)
        await client.turn(queue, [retry], count=0)
        assert await client.promote_delayed(queue, 10) == 1
        job = await leased(client, queue)
        await client.ack_success(queue, job.job_id, job.lease_token)
        await client.tend(queue)
    assert (await client.monitor.counts(queue)).active == 0
