"""The HTTP client, and an application served by a worker that knows only an address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest

from penstock import App
from penstock.app import serve
from penstock.core.errors import ConfigError, TaskFailed, Waited
from penstock.protocols.ojs.remote.client import OjsHttpClient
from penstock.protocols.ojs.remote.errors import OjsError, ServerAway
from penstock.settings import Given, load_settings

app = App("far")


@app.task
async def double(n: int) -> int:
    return n * 2


@app.task
async def broken() -> None:
    raise ValueError("it broke")


@pytest.fixture
async def client(http: httpx.AsyncClient) -> AsyncIterator[OjsHttpClient]:
    async with OjsHttpClient(str(http.base_url)) as opened:
        yield opened


async def test_a_job_is_stored_seen_and_cancelled(client: OjsHttpClient) -> None:
    job = await client.enqueue("mail.send", ["a"], queue="mail", priority=5, meta={"k": 1})

    assert (job.queue, job.priority, job.state, job.meta) == ("mail", 5, "available", {"k": 1})
    assert (await client.job(job.id)).id == job.id
    assert (await client.cancel(job.id, "no need")).state == "cancelled"
    with pytest.raises(OjsError) as refused:
        await client.cancel(job.id)
    assert (refused.value.status, refused.value.wire_code) == (409, "conflict")
    assert refused.value.details["current_state"] == "cancelled"


async def test_times_and_lengths_may_be_pythons_own(client: OjsHttpClient) -> None:
    job = await client.enqueue("mail.send", scheduled_at=timedelta(hours=1))

    assert job.state == "scheduled"


async def test_a_batch_is_all_or_nothing(client: OjsHttpClient) -> None:
    from penstock.protocols.ojs.remote.client import job_request

    good = [job_request("mail.send", [n]) for n in range(3)]
    assert len(await client.enqueue_batch(good)) == 3
    with pytest.raises(OjsError, match="type"):
        await client.enqueue_batch([job_request("mail.send"), job_request("NO")])


async def test_waiting_for_a_result_ends_when_asked_to(client: OjsHttpClient) -> None:
    job = await client.enqueue("nobody.serves")

    with pytest.raises(Waited):
        await client.result(job.id, timeout=0.2)


async def test_a_server_that_is_not_there_is_named() -> None:
    async with OjsHttpClient("http://127.0.0.1:1") as client:
        with pytest.raises(ServerAway, match=r"127\.0\.0\.1:1"):
            await client.transport.ask("GET", "/health", again=False)
    with pytest.raises(ConfigError, match="not the address"):
        OjsHttpClient("127.0.0.1:8080")


async def test_an_application_is_served_over_http_alone(client: OjsHttpClient) -> None:
    settings = load_settings(flags=[Given("ojs.server", client.url, "--ojs-server")]).settings
    ready = asyncio.Event()
    worker = asyncio.create_task(serve(app, settings, ["ojs"], ready=lambda _: ready.set()))
    try:
        async with asyncio.timeout(30):
            await ready.wait()
            good = await client.enqueue("double", [21])
            bad = await client.enqueue("broken", retry={"max_attempts": 1})
            assert await client.result(good.id) == 42
            with pytest.raises(TaskFailed, match="it broke"):
                await client.result(bad.id)
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
