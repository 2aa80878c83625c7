"""Open Job Spec keeps the delivery contract, straight over NATS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from penstock.core.delivery import Delivery, SettledKind
from penstock.core.ids import uuid7
from penstock.protocols.ojs.client import OjsClient
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal
from penstock.protocols.ojs.timing import when_due
from penstock.protocols.ojs.worker import FACILITIES, QueueSource
from tests.contracts.delivery import LIVE, DeliveryContract

from .conftest import OpenEngine, until
from .stories import take

LEASE = timedelta(seconds=1)
FINAL = {
    "completed": SettledKind.SUCCEEDED,
    "discarded": SettledKind.PARKED,
    "cancelled": SettledKind.CANCELLED,
}


class OjsWire:
    """One queue, a producer without an index, and workers with an engine each."""

    can = FACILITIES

    def __init__(self, open_engine: OpenEngine, engine: Engine, client: OjsClient) -> None:
        self._open_engine = open_engine
        self._engine = engine
        self._client = client
        self._sources: list[QueueSource] = []

    async def enqueue(self, body: Any) -> str:
        retry = {"initial_interval": "PT0.001S", "jitter": False, "max_attempts": 5}
        return (await self._client.enqueue("job", body, retry=retry)).id

    async def enqueue_malformed(self) -> str:
        await self._engine.shared.room.jobs.put(uuid7(), b"{not a record")
        return ""

    async def source(self) -> QueueSource:
        engine = await self._open_engine(first_term=LEASE) if self._sources else self._engine
        name = f"w{len(self._sources)}"
        self._sources.append(QueueSource(engine, "default", {"job": "job"}, name))
        return self._sources[-1]

    async def steal(self, delivery: Delivery) -> None:
        shared = self._engine.shared
        much_later = shared.clock() + timedelta(seconds=60)

        def lapse(record: Record) -> Record | Refusal:
            ripe = when_due(record, much_later, shared.dice, shared.options)
            assert isinstance(ripe, Record)
            return ripe

        await shared.books.store.change(delivery.invocation.work_id, lapse)
        stolen = await take(self._engine, worker="thief")
        assert stolen.id == delivery.invocation.work_id

    async def cancel(self, work_id: str) -> None:
        await self._client.cancel(work_id)

    async def state(self, work_id: str) -> SettledKind | str:
        return FINAL.get((await self._client.get(work_id)).state, LIVE)


@pytest.fixture
async def wire(open_engine: OpenEngine) -> AsyncIterator[OjsWire]:
    engine = await open_engine(first_term=LEASE)
    client = await OjsClient.open(engine.shared.room.link, engine.options)
    yield OjsWire(open_engine, engine, client)
    await client.close()


class TestOjsDelivery(DeliveryContract):
    """The contract, unchanged."""


async def test_work_that_is_not_for_this_worker_does_not_wait_for_it(engine: Engine) -> None:
    """Or the watchdog would take it for deaf, and a probe would end a worker that is well."""
    client = await OjsClient.open(engine.shared.room.link, engine.options)
    source = QueueSource(engine, "default", {"job": "job"}, "ann")
    index = engine.shared.books.index

    await client.enqueue("somebody-elses", {})
    await until(lambda: index.counts("default")["available"] == 1)
    assert await source.waiting() == 0

    await client.enqueue("job", {})
    await until(lambda: index.counts("default")["available"] == 2)
    assert await source.waiting() == 1
    await client.close()
