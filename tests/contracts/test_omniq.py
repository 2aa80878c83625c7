"""OmniQ keeps the delivery contract, on a real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.core.delivery import Delivery, SettledKind
from penstock.core.ids import short_token
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.options import OmniqOptions
from penstock.protocols.omniq.wire import ReservedJob
from penstock.protocols.omniq.worker import QueueSource, facilities
from tests.contracts.delivery import LIVE, DeliveryContract

LEASE_MS = 1_000
FINAL = {"completed": SettledKind.SUCCEEDED, "failed": SettledKind.PARKED}


class OmniqWire:
    """One queue, a publisher, and any number of consumers, each with a client of its own."""

    can = facilities(OmniqOptions())

    def __init__(self, url: str, gid: str | None) -> None:
        self.url = url
        self.gid = gid
        self.queue = f"q-{short_token()}"
        self.client = OmniqClient(url)
        self.sources: list[QueueSource] = []

    async def enqueue(self, body: Any) -> str:
        return await self.client.publish(
            self.queue,
            body,
            timeout_ms=LEASE_MS,
            backoff_ms=1,
            gid=self.gid,
            group_limit=100,
        )

    async def enqueue_malformed(self) -> str:
        job_id = await self.enqueue({})
        port = await self.client.port()
        await port.execute("HSET", f"{{{self.queue}}}:job:{job_id}", "payload", "{not JSON")
        return job_id

    async def source(self) -> QueueSource:
        source = QueueSource(OmniqClient(self.url), self.queue, "job")
        self.sources.append(source)
        return source

    async def steal(self, delivery: Delivery) -> None:
        much_later = OmniqClient.now_ms() + 10 * LEASE_MS
        assert await self.client.reap_expired(self.queue, now_ms_override=much_later) == 1
        await self.client.promote_delayed(self.queue, now_ms_override=much_later + 1)
        assert isinstance(await self.client.reserve(self.queue), ReservedJob)

    async def cancel(self, work_id: str) -> None:
        raise AssertionError("OmniQ has no way to ask for it")

    async def state(self, work_id: str) -> SettledKind | str:
        job = await self.client.monitor.get_job(self.queue, work_id)
        assert job is not None
        return FINAL.get(job.state, LIVE)

    async def close(self) -> None:
        for source in self.sources:
            await source.stop()
            await source.client.close()
        await self.client.close()


@pytest.fixture(scope="session")
def redis_server() -> Any:
    """The Redis shared by the contract's tests of one worker."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture(params=[None, "group"], ids=["ungrouped", "grouped"])
async def wire(request: Any, redis_server: EmbeddedRedis) -> AsyncIterator[OmniqWire]:
    made = OmniqWire(redis_server.url, request.param)
    yield made
    await made.close()


class TestOmniqDelivery(DeliveryContract):
    """The contract, unchanged."""
