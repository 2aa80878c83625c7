"""natq keeps the contract of every delivery, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.publisher import Stored
from penstock.broker.streams import ConsumerConfig
from penstock.core.delivery import Delivery, SettledKind, Source
from penstock.core.outcome import Done
from penstock.core.policy import Backoff
from penstock.protocols.natq.client import NatqClient
from penstock.protocols.natq.records import Records
from penstock.protocols.natq.wire import consumer_name
from penstock.protocols.natq.worker import FACILITIES, JobSource
from tests.contracts.delivery import LIVE, DeliveryContract, take_one
from tests.protocols.natq.conftest import a_task

if TYPE_CHECKING:
    from penstock.broker.link import Link
    from penstock.protocols.natq.options import NatqOptions
    from penstock.protocols.natq.room import Room

_TASK = "job"
_ACK_WAIT = timedelta(seconds=2)
_SOON = Backoff(base=timedelta(milliseconds=5), ceiling=timedelta(milliseconds=5))


class NatqWire:
    """Jobs of one task, on a consumer that somebody made with a short ack wait."""

    can = FACILITIES

    def __init__(self, client: NatqClient) -> None:
        self.client = client
        self.room: Room = client.room
        self.sources: list[JobSource] = []

    async def prepare(self) -> None:
        await self.room.jetstream.ensure_consumer(
            self.room.options.stream,
            ConsumerConfig(
                durable_name=consumer_name(_TASK),
                filter_subject=self.room.options.async_prefix + _TASK,
                ack_policy="explicit",
                deliver_policy="all",
                ack_wait=_ACK_WAIT,
            ),
        )

    async def enqueue(self, body: Any) -> str:
        return (await self.client.enqueue(_TASK, body)).run_id

    async def enqueue_malformed(self) -> str:
        subject = (self.room.options.async_prefix + _TASK).encode()
        assert isinstance(await self.room.publisher.publish(subject, b'{"runId":'), Stored)
        return ""

    async def source(self) -> Source:
        task = a_task(backoff=_SOON)
        source = JobSource(self.room, task, f"worker-{len(self.sources)}")
        await source.bind()
        self.sources.append(source)
        return source

    async def steal(self, delivery: Delivery) -> None:
        """What a thief does first: it writes its own processing record over the one it found."""
        thief = Records(self.room.results, _TASK, worker_id="thief")
        run_id, attempt = delivery.invocation.work_id, delivery.invocation.attempt
        record, entry = await thief.read(run_id)
        assert record is not None and entry is not None and isinstance(record.seq, int)
        written = await thief.begun(
            run_id, record.seq, attempt=attempt + 1, revision=entry.revision
        )
        assert isinstance(written, Stored)

    async def cancel(self, work_id: str) -> None:
        raise AssertionError("natq has no place for a cancellation")

    async def state(self, work_id: str) -> SettledKind | str:
        record = await self.client.status(_TASK, work_id)
        if record is None or not record.is_final:
            return LIVE
        return SettledKind.SUCCEEDED if record.status < 300 else SettledKind.PARKED


class TestNatqDelivery(DeliveryContract):
    @pytest.fixture
    async def wire(self, link: Link, options: NatqOptions) -> AsyncIterator[NatqWire]:
        wire = NatqWire(await NatqClient.open(link, options))
        await wire.prepare()
        yield wire
        for source in wire.sources:
            await source.stop()


async def test_what_the_consumer_may_not_hand_out_does_not_wait(
    link: Link, options: NatqOptions
) -> None:
    """Or the watchdog would take this worker for deaf while others hold all that may be held."""
    client = await NatqClient.open(link, options)
    await client.room.jetstream.ensure_consumer(
        options.stream,
        ConsumerConfig(
            durable_name=consumer_name(_TASK),
            filter_subject=options.async_prefix + _TASK,
            ack_policy="explicit",
            deliver_policy="all",
            max_ack_pending=1,
        ),
    )
    source = JobSource(client.room, a_task(), "ann")
    await source.bind()
    for _ in range(2):
        await client.enqueue(_TASK, {})
    assert await source.waiting() == 2

    held = await take_one(source)

    assert await source.waiting() == 0
    await held.settle(Done())
    await source.stop()
