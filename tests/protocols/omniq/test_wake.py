"""Idle consumers of ours are rung up by our publishers; nothing grows where nobody listens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.redis_link import RedisLink
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.store import Settle
from tests.protocols.omniq.stories import T, leased, name_of


async def announce(client: OmniqClient, queue: str, name: str = "c", wait_ms: int = 5000) -> None:
    assert not await client.reserve_many(queue, 1, consumer=name, wait_ms=wait_ms)


def tokens(raw: Any, queue: str) -> int:
    return int(raw.llen(OmniqClient.wake_key(queue)))


async def test_publishing_leaves_nothing_when_nobody_listens(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    await client.publish_many(queue, [{} for _ in range(10)])

    assert tokens(raw, queue) == 0


async def test_each_arrival_rings_one_waiter_and_never_more_than_wait(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    await announce(client, queue, "one")
    await announce(client, queue, "two")

    counts = []
    for _ in range(4):
        await client.publish(queue, {})
        counts.append(tokens(raw, queue))

    assert counts == [1, 2, 2, 2]
    assert 0 < raw.pttl(OmniqClient.wake_key(queue)) <= 30_000


async def test_a_bulk_rings_as_many_as_it_has_work_for(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    for name in "abcde":
        await announce(client, queue, name)

    await client.publish_many(queue, [{}, {}, {}])

    assert tokens(raw, queue) == 3


async def test_who_got_work_or_waited_too_long_is_rung_no_more(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    await announce(client, queue, "served")
    await announce(client, queue, "gone", wait_ms=1)
    await client.publish_many(queue, [{}, {}])
    assert await client.reserve_many(queue, 2, consumer="served", wait_ms=5000)
    raw.delete(OmniqClient.wake_key(queue))

    await client.publish(queue, {}, now_ms_override=OmniqClient.now_ms() + 50)

    assert tokens(raw, queue) == 0


async def test_a_job_behind_a_full_group_rings_when_the_slot_is_free(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    await client.publish(queue, {}, gid="g")
    job = await leased(client, queue)
    await announce(client, queue)
    await client.publish(queue, {}, gid="g")
    assert tokens(raw, queue) == 0

    await client.ack_success(queue, job.job_id, job.lease_token)

    assert tokens(raw, queue) == 1


@pytest.mark.parametrize("way", ["promote", "release", "retry_failed", "resume", "turn"])
async def test_every_way_back_to_waiting_rings(
    client: OmniqClient, queue: str, raw: Any, way: str
) -> None:
    await client.publish(queue, {}, job_id="x", max_attempts=1, due_ms=1)
    job = await leased(client, queue)
    if way == "promote":
        await client.publish(queue, {}, due_ms=OmniqClient.now_ms() + 3_000)
    if way == "retry_failed":
        await client.ack_fail(queue, "x", job.lease_token)
    await announce(client, queue, wait_ms=20_000)
    release = Settle.release("x", job.lease_token)

    if way == "promote":
        await client.promote_delayed(queue, now_ms_override=OmniqClient.now_ms() + 4_000)
    elif way == "release":
        await client.settle(queue, [release])
    elif way == "retry_failed":
        await client.retry_failed(queue, "x")
    elif way == "turn":
        await client.turn(queue, [release], count=0)
    else:
        await client.pause(queue)
        await client.resume(queue)

    assert tokens(raw, queue) == 1


async def test_a_blocked_consumer_hears_of_work_at_once(redis_server: Any, queue: str) -> None:
    async with OmniqClient(redis_server.url) as client:
        listener = RedisLink(redis_server.url, timeout=None)
        await announce(client, queue)
        waiting = asyncio.create_task(listener.execute("BLPOP", client.wake_key(queue), 5))

        published = await client.publish(queue, {})

        assert await waiting == [client.wake_key(queue).encode(), b"1"]
        assert name_of(await client.reserve(queue)) == published
        await listener.aclose()


async def test_the_instant_of_an_override_counts_for_waiters_too(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    await client.reserve_many(queue, 1, consumer="c", wait_ms=10, now_ms_override=T)
    await client.publish(queue, {}, now_ms_override=T + 11)
    assert tokens(raw, queue) == 0
    await client.publish(queue, {}, now_ms_override=T + 10)
    assert tokens(raw, queue) == 1
