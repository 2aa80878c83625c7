"""The whole of natq over nats-py's public interface alone: slower, and the same."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.broker.plain_link import PlainLink
from penstock.protocols.natq.client import Job, NatqClient
from penstock.protocols.natq.options import NatqOptions
from tests.protocols.natq.conftest import Serve, a_task


@pytest.fixture
async def plain(nats_server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch) -> Link:
    monkeypatch.setenv("PENSTOCK_PLAIN_LINK", "1")
    return await Link.open(NatsOptions.from_url(nats_server.url))


async def test_jobs_and_requests_need_no_more_than_the_public_interface(
    plain: Link, options: NatqOptions, serve: Serve
) -> None:
    async def double(n: int) -> int:
        return 2 * n

    producer = await NatqClient.open(plain, options)
    serving = await serve(a_task(double), a_task(double, name="twice", reply=True))
    assert isinstance(plain, PlainLink)
    assert isinstance(serving.link, PlainLink)

    report = await producer.enqueue_many(Job("job", {"n": n}, f"run-{n}") for n in range(200))
    results = await asyncio.gather(*(producer.result("job", f"run-{n}", 60) for n in range(200)))
    answer = await producer.call("twice", {"n": 21})

    assert report.complete
    assert results == [2 * n for n in range(200)]
    assert answer == 42
    await plain.close()
