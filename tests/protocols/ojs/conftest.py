"""Engines on one server, wiped after each test: fixed names must not let tests meet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.ojs.room import Room

OpenEngine = Callable[..., Awaitable[Engine]]


@pytest.fixture(scope="session")
def ojs_server() -> Iterator[EmbeddedNats]:
    """The server of all OJS tests of one worker."""
    with EmbeddedNats() as server:
        yield server


@pytest.fixture
async def ojs_nats(ojs_server: EmbeddedNats) -> AsyncIterator[EmbeddedNats]:
    """A server without a job. Never stop, kill or restart it."""
    yield ojs_server
    link = await Link.open(NatsOptions.from_url(ojs_server.url))
    await (await Room.open(link, OjsOptions())).wipe()
    await link.close(drain=False)


@pytest.fixture
async def open_engine(ojs_nats: EmbeddedNats) -> AsyncIterator[OpenEngine]:
    """``await open_engine(**OjsOptions)``: one more instance, with a link of its own."""
    async with AsyncExitStack() as stack:

        async def open_one(*, services: bool = True, **options: Any) -> Engine:
            link = await Link.open(NatsOptions.from_url(ojs_nats.url))
            stack.push_async_callback(link.close, drain=False)
            engine = await Engine.open(link, OjsOptions(**options), services=services)
            stack.push_async_callback(engine.close)
            return engine

        yield open_one


@pytest.fixture
async def engine(open_engine: OpenEngine) -> Engine:
    return await open_engine()


async def until(true: Callable[[], Any], within_s: float = 20.0) -> None:
    """Wait for something that is about to be so; look often, give up late."""
    end = asyncio.get_running_loop().time() + within_s
    while True:
        result = true()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return
        assert asyncio.get_running_loop().time() < end, "it did not come to pass in time"
        await asyncio.sleep(0.01)
