"""The doorbell: it rings for whatever makes a job takable, whoever did it, and else is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py
import redis.asyncio as aio_redis_py

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.doorbell import Doorbell
from penstock.protocols.omniq.store import Settle
from tests.protocols.omniq.stories import leased

POLL = timedelta(milliseconds=50)
LONG_S = 30.0


@pytest.fixture
async def bell(redis_server: EmbeddedRedis, queue: str) -> AsyncIterator[Doorbell]:
    """Of a consumer that shares nothing with the client but the server."""
    async with OmniqClient(redis_server.url) as consumer:
        yield Doorbell(consumer, queue, POLL)


async def test_it_does_not_ring_while_nothing_is_there(bell: Doorbell) -> None:
    assert not await bell.arrival(0.2)


async def test_it_rings_at_once_when_work_is_there_already(
    bell: Doorbell, client: OmniqClient, queue: str
) -> None:
    await client.publish(queue, {})

    assert await bell.arrival(LONG_S)


@pytest.mark.parametrize(
    "way", ["publish", "grouped", "promote", "release", "retry_failed", "resume", "slot", "reap"]
)
async def test_every_way_to_wait_rings(
    bell: Doorbell, client: OmniqClient, queue: str, way: str
) -> None:
    act = await prepared(client, queue, way)
    ringing = asyncio.create_task(bell.arrival(LONG_S))
    await listened(client)

    await act()

    assert await ringing


async def prepared(client: OmniqClient, queue: str, way: str) -> Callable[[], Awaitable[Any]]:
    """Bring the queue to where nothing can be taken; the act that changes that."""
    later = client.now_ms() + 3_600_000
    if way == "publish":
        return lambda: client.publish(queue, {})
    if way == "grouped":
        return lambda: client.publish(queue, {}, gid="g")
    if way == "resume":
        await client.publish(queue, {})
        await client.pause(queue)
        return lambda: client.resume(queue)
    await client.publish(queue, {}, job_id="x", gid="g", max_attempts=1 if "retry" in way else 3)
    job = await leased(client, queue)
    if way == "release":
        return lambda: client.settle(queue, [Settle.release("x", job.lease_token)])
    if way == "slot":
        await client.publish(queue, {}, gid="g")
        return lambda: client.ack_success(queue, "x", job.lease_token)
    if way == "reap":
        await client.publish(queue, {}, gid="g")
        return lambda: client.reap_expired(queue, now_ms_override=later)
    await client.ack_fail(queue, "x", job.lease_token)
    if way == "retry_failed":
        return lambda: client.retry_failed(queue, "x")
    return lambda: client.promote_delayed(queue, now_ms_override=later)


async def listened(client: OmniqClient) -> None:
    """Until Redis remembers a reader."""
    port = await client.port()
    async with asyncio.timeout(20):
        while b"tracking_total_keys:0" in bytes(await port.execute("INFO", "stats")):  # type: ignore[call-overload]
            await asyncio.sleep(0.005)


async def test_it_rings_again_after_the_server_was_gone(
    fresh_redis: EmbeddedRedis, queue: str
) -> None:
    async with OmniqClient(fresh_redis.url) as consumer, OmniqClient(fresh_redis.url) as client:
        bell = Doorbell(consumer, queue, POLL)
        ringing = asyncio.create_task(bell.arrival(LONG_S))
        await listened(client)

        await asyncio.to_thread(fresh_redis.restart)
        await client.publish(queue, {})

        async with asyncio.timeout(20):
            while not (await ringing):
                ringing = asyncio.create_task(bell.arrival(LONG_S))


@pytest.mark.parametrize("kind", ["asyncio", "cannot track"])
async def test_where_redis_cannot_tell_it_looks_again_and_again(
    redis_server: EmbeddedRedis, queue: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "cannot track":
        monkeypatch.setattr(
            "penstock.broker.redis_sentry._GREETING", (("CLIENT", "NO-SUCH-THING"),)
        )
        consumer = OmniqClient(redis_server.url)
    else:
        theirs = aio_redis_py.Redis.from_url(redis_server.url, credential_provider=Anonymous())
        consumer = OmniqClient(redis=theirs)
    async with consumer, OmniqClient(redis_server.url) as client:
        bell = Doorbell(consumer, queue, POLL)
        assert not await bell.arrival(0.1)
        ringing = asyncio.create_task(bell.arrival(LONG_S))

        await client.publish(queue, {})

        assert await ringing


async def test_a_client_of_the_caller_is_told_by_redis_too(
    redis_server: EmbeddedRedis, queue: str
) -> None:
    theirs = aio_redis_py.Redis.from_url(redis_server.url)
    async with OmniqClient(redis=theirs) as consumer, OmniqClient(redis_server.url) as client:
        bell = Doorbell(consumer, queue, timedelta(hours=1))
        assert not await bell.arrival(0.05)
        ringing = asyncio.create_task(bell.arrival(LONG_S))

        await client.publish(queue, {})

        assert await ringing
    await theirs.aclose()


async def test_nothing_is_kept_for_those_who_listen(
    bell: Doorbell, client: OmniqClient, queue: str, raw: Any
) -> None:
    assert not await bell.arrival(0.05)
    await client.publish(queue, {})

    assert not raw.keys(f"{{{queue}}}:x:*")


class Anonymous(redis_py.credentials.CredentialProvider):
    """A way to log in that only redis-py knows."""

    def get_credentials(self) -> Any:
        return ()
