"""The operator's door: queues, jobs page by page, actions, and changes as they happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.core.admin import WorkView
from penstock.core.errors import UnknownName
from penstock.protocols.omniq.admin import OmniqAdmin
from penstock.protocols.omniq.client import OmniqClient
from tests.protocols.omniq.stories import leased


@pytest.fixture
async def client(redis_server: EmbeddedRedis) -> AsyncIterator[OmniqClient]:
    async with OmniqClient(redis_server.url) as made:
        yield made


@pytest.fixture
def admin(client: OmniqClient) -> OmniqAdmin:
    return OmniqAdmin(client)


async def all_pages(admin: OmniqAdmin, queue: str, state: str, limit: int) -> list[WorkView]:
    found: list[WorkView] = []
    cursor = ""
    while True:
        page = await admin.find(name=queue, state=state, limit=limit, cursor=cursor)
        assert len(page.items) <= limit
        found += page.items
        cursor = page.cursor
        if not cursor:
            return found


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_every_job_is_found_once_page_by_page(
    admin: OmniqAdmin, client: OmniqClient, queue: str, limit: int
) -> None:
    plain = await client.publish_many(queue, [{"n": n} for n in range(9)])
    grouped = await client.publish_many(queue, [{}, {}, {}], gid="g")
    other = await client.publish_many(queue, [{}], gid="h:wait")
    later = await client.publish(queue, {}, due_ms=client.now_ms() + 60_000)
    running = await leased(client, queue)

    waiting = await all_pages(admin, queue, "wait", limit)
    everything = await all_pages(admin, queue, "", limit)

    still = {*plain, *grouped, *other} - {running.job_id}
    assert {job.work_id for job in waiting} == still
    assert len(waiting) == len(still)
    states = {job.work_id: job.state for job in everything}
    assert states[later] == "delayed"
    assert states[running.job_id] == "active"
    assert len(everything) == len(states) == 14


async def test_queues_are_counted_with_their_groups(
    admin: OmniqAdmin, client: OmniqClient, queue: str
) -> None:
    await client.publish_many(queue, [{}, {}])
    await client.publish_many(queue, [{}, {}, {}], gid="g")
    await client.pause(queue)

    (found,) = [one for one in await admin.queues() if one.name == queue]

    assert (found.waiting, found.running, found.paused) == (5, 0, True)
    assert found.detail["groups"] == 1


async def test_changes_are_told_as_they_happen(
    admin: OmniqAdmin, client: OmniqClient, queue: str
) -> None:
    await client.publish(queue, {}, job_id="old")
    await asyncio.sleep(0.01)
    told: list[tuple[str, str]] = []
    ready = asyncio.Event()

    async def watch() -> None:
        async for job in admin.watch(name=queue):
            told.append((job.work_id, job.state))
            ready.set()

    watching = asyncio.create_task(watch())
    async with asyncio.timeout(20):
        await client.publish(queue, {}, job_id="new")
        while ("new", "wait") not in told:
            await ready.wait()
            ready.clear()
        for _ in range(2):
            job = await leased(client, queue)
            await client.ack_success(queue, job.job_id, job.lease_token)
        while {("old", "completed"), ("new", "completed")} - set(told):
            await ready.wait()
            ready.clear()
    watching.cancel()

    assert len(told) == len(set(told))


async def test_what_cannot_be_done_is_told(
    admin: OmniqAdmin, client: OmniqClient, queue: str
) -> None:
    await client.publish(queue, {}, job_id="x")
    taken = await leased(client, queue)

    removed = await admin.act("rm", queue, ["x", "nobody"])
    retried = await admin.act("retry", queue, ["x"])

    assert removed.changed == retried.changed == 0
    assert set(removed.refused) == {"x: ACTIVE", "nobody: NO_JOB"}
    assert retried.refused == ("x: NOT_FAILED",)
    with pytest.raises(UnknownName):
        await admin.act("explode", queue, ())
    with pytest.raises(UnknownName):
        await admin.find(name=queue, state="waiting")
    assert await admin.show(queue, "nobody") is None
    await client.ack_success(queue, "x", taken.lease_token)
