"""A worker elsewhere keeps the delivery contract, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from penstock.core.delivery import Delivery, SettledKind
from penstock.core.ids import uuid7
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.http.serving import open_face
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal
from penstock.protocols.ojs.remote.client import OjsHttpClient
from penstock.protocols.ojs.remote.source import FACILITIES, HttpSource
from penstock.protocols.ojs.requests import FetchRequest
from penstock.protocols.ojs.timing import when_due
from penstock.web.server import HttpServer
from tests.contracts.delivery import LIVE, DeliveryContract

LEASE = timedelta(seconds=1)
RETRY = {"initial_interval": "PT0.001S", "jitter": False, "max_attempts": 5}
FINAL = {
    "completed": SettledKind.SUCCEEDED,
    "discarded": SettledKind.PARKED,
    "cancelled": SettledKind.CANCELLED,
}


class HttpWire:
    """One queue of one server, a producer and workers that reach it over HTTP only."""

    can = FACILITIES

    def __init__(self, engine: Engine, client: OjsHttpClient) -> None:
        self._engine = engine
        self._client = client
        self._count = 0

    async def enqueue(self, body: Any) -> str:
        whole = {"x_penstock_input": "whole"}
        request = {"type": "job", "args": [body], "id": uuid7(), "options": {"retry": RETRY}}
        await self._client.transport.ask("POST", "/ojs/v1/jobs", request | whole)
        return str(request["id"])

    async def enqueue_malformed(self) -> str:
        await self._engine.shared.room.jobs.put(uuid7(), b"{not a record")
        return ""

    async def source(self) -> HttpSource:
        self._count += 1
        holder = f"w{self._count}"
        return HttpSource(self._client.transport, "default", {"job": "job"}, holder, term=LEASE)

    async def steal(self, delivery: Delivery) -> None:
        shared = self._engine.shared
        much_later = shared.clock() + timedelta(seconds=60)

        def lapse(record: Record) -> Record | Refusal:
            ripe = when_due(record, much_later, shared.dice, shared.options)
            assert isinstance(ripe, Record)
            return ripe

        await shared.books.store.change(delivery.invocation.work_id, lapse)
        [stolen] = await self._engine.fetch(FetchRequest(queues=("default",), worker="thief"))
        assert stolen.id == delivery.invocation.work_id

    async def cancel(self, work_id: str) -> None:
        await self._client.cancel(work_id)

    async def state(self, work_id: str) -> SettledKind | str:
        return FINAL.get((await self._client.job(work_id)).state, LIVE)


@pytest.fixture
async def wire(engine: Engine) -> AsyncIterator[HttpWire]:
    async with AsyncExitStack() as stack:
        face = await stack.enter_async_context(open_face(engine))
        server = await stack.enter_async_context(HttpServer(face))
        client = await stack.enter_async_context(OjsHttpClient(server.url))
        yield HttpWire(engine, client)


class TestOjsHttpDelivery(DeliveryContract):
    """The contract, unchanged."""
