"""Rounds: as often as needed, never without end, and not ended by a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.broker.redis_port import RedisLost
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.options import OmniqOptions
from penstock.protocols.omniq.rounds import Rounds

NEVER = timedelta(hours=1)


@pytest.fixture
async def client(redis_server: EmbeddedRedis) -> AsyncIterator[OmniqClient]:
    async with OmniqClient(redis_server.url) as made:
        yield made


class Counted:
    """Counts the rounds of a client, and waits for them."""

    def __init__(self, client: OmniqClient) -> None:
        self.count = 0
        self.fail_next = 0
        self._changed = asyncio.Condition()
        self._really = client.tend
        client.tend = self.tend  # type: ignore[method-assign]

    async def tend(self, *args: Any, **options: Any) -> Any:
        async with self._changed:
            self.count += 1
            self._changed.notify_all()
        if self.fail_next:
            self.fail_next -= 1
            raise RedisLost("gone for a moment")
        return await self._really(*args, **options)

    async def reaches(self, count: int) -> None:
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: self.count >= count)


async def test_more_than_one_batch_is_moved_without_a_pause(
    client: OmniqClient, queue: str
) -> None:
    await client.publish_many(
        queue, [{} for _ in range(25)], due_ms=client.now_ms() + 1_000_000_000
    )
    rounds_at = client.now_ms() + 2_000_000_000
    really = client.tend

    async def later(*args: Any) -> Any:
        return await really(*args, now_ms_override=rounds_at)

    client.tend = later  # type: ignore[method-assign]
    counted = Counted(client)
    rounds = Rounds(client, queue, OmniqOptions(upkeep=NEVER, promote_batch=10))

    rounds.start()
    rounds.start()
    await counted.reaches(3)

    async with asyncio.timeout(20):
        while (await client.monitor.counts(queue)).wait < 25:
            await asyncio.sleep(0.01)
    await rounds.stop()
    await rounds.stop()
    assert counted.count == 3


async def test_the_next_round_is_when_the_next_job_is_due(client: OmniqClient, queue: str) -> None:
    await client.publish(queue, {}, due_ms=client.now_ms() + 400)
    rounds = Rounds(client, queue, OmniqOptions(upkeep=NEVER))

    rounds.start()

    async with asyncio.timeout(20):
        while (await client.monitor.counts(queue)).wait == 0:
            await asyncio.sleep(0.01)
    await rounds.stop()


async def test_a_job_of_ours_that_falls_due_brings_the_round_forward(
    client: OmniqClient, queue: str
) -> None:
    counted = Counted(client)
    rounds = Rounds(client, queue, OmniqOptions(upkeep=NEVER))
    rounds.start()
    await counted.reaches(1)
    await asyncio.sleep(0.05)  # the walker has gone to sleep; if not, it looks once more

    rounds.expect(0.01)

    await counted.reaches(2)
    await rounds.stop()


async def test_a_round_that_fails_is_not_the_last(client: OmniqClient, queue: str) -> None:
    counted = Counted(client)
    counted.fail_next = 2
    rounds = Rounds(client, queue, OmniqOptions(upkeep=timedelta(milliseconds=10)))

    rounds.start()

    await counted.reaches(4)
    await rounds.stop()


async def test_the_rounds_of_a_closed_client_end(redis_server: EmbeddedRedis, queue: str) -> None:
    client = OmniqClient(redis_server.url)
    rounds = Rounds(client, queue, OmniqOptions(upkeep=timedelta(milliseconds=10)))
    rounds.start()
    walking = rounds._walk
    assert walking is not None

    await client.close()

    async with asyncio.timeout(20):
        await walking
