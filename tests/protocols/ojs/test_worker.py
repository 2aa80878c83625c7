"""An application's handlers, served straight over NATS, and the producer beside them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import App, Context
from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.core.errors import TaskFailed
from penstock.core.outcome import Reject
from penstock.protocols.ojs.client import OjsClient
from penstock.protocols.ojs.refusal import Refused
from penstock.protocols.ojs.serving import open_admin
from penstock.settings import Settings
from penstock.settings.model import NatsSettings

app = App("shop")


@app.task
async def double(n: int) -> int:
    return 2 * n


@app.task(queue="mail", names={"ojs": "mail.send"})
def send(ctx: Context, to: str, copies: int = 1) -> dict[str, Any]:
    ctx.progress(1, 2, "half")
    return {"to": to, "copies": copies, "attempt": ctx.attempt}


@app.task
async def flaky(ctx: Context) -> int:
    if ctx.attempt < 3:
        raise ValueError("not yet")
    return ctx.attempt


@app.task
async def sleepy(ctx: Context) -> int:
    if ctx.delivery == 1:
        await asyncio.sleep(3600)  # until somebody kills this process
    return ctx.delivery


@app.task
async def wrong() -> None:
    raise Reject("never", code="no")


@pytest.fixture
async def client(ojs_nats: EmbeddedNats) -> Any:
    settings = Settings(nats=NatsSettings(url=ojs_nats.url))
    async with app.running(settings=settings, protocols=["ojs"]):
        link = await Link.open(NatsOptions.from_url(ojs_nats.url))
        async with await OjsClient.open(link) as opened:
            yield opened
        await link.close(drain=False)


async def test_every_way_of_giving_an_input_reaches_the_handler(client: OjsClient) -> None:
    by_name = await client.enqueue("double", {"n": 21})
    by_place = await client.enqueue("double", [4])
    named = await client.enqueue("mail.send", {"to": "ann", "copies": 3}, queue="mail")
    assert await by_name.result(20) == 42
    assert await by_place.result(20) == 8
    assert await named.result(20) == {"to": "ann", "copies": 3, "attempt": 1}
    record = await client.get(named.id)
    assert record.progress is not None and record.progress.value == 1.0
    assert record.progress.message == "half"


async def test_a_failing_handler_is_tried_again_as_the_job_says(client: OjsClient) -> None:
    retry = {"initial_interval": "PT0.01S", "max_attempts": 5}
    job = await client.enqueue("flaky", retry=retry)
    assert await job.result(20) == 3
    assert len((await client.get(job.id)).job.errors) == 2


async def test_a_rejected_input_is_discarded_and_says_why(client: OjsClient) -> None:
    job = await client.enqueue("wrong", retry={"on_exhaustion": "dead_letter"})
    with pytest.raises(TaskFailed, match="never"):
        await job.result(20)
    assert await job.state() == "discarded"
    assert (await client.get(job.id)).dead_letter


async def test_a_bad_input_is_rejected_with_its_path(client: OjsClient) -> None:
    job = await client.enqueue("double", {"n": "many"})
    with pytest.raises(TaskFailed, match="n"):
        await job.result(20)


async def test_a_job_of_a_type_that_nobody_here_knows_is_left_alone(client: OjsClient) -> None:
    foreign = await client.enqueue("of.others")
    mine = await client.enqueue("double", [1])
    assert await mine.result(20) == 2
    assert await foreign.state() == "available"
    await client.cancel(foreign.id)
    with pytest.raises(TaskFailed, match="cancelled"):
        await foreign.result(20)


async def test_many_jobs_in_one_go(client: OjsClient) -> None:
    jobs = await client.enqueue_many([("double", [n]) for n in range(200)])
    results = await asyncio.gather(*(job.result(30) for job in jobs))
    assert results == [2 * n for n in range(200)]
    with pytest.raises(Refused):
        await client.enqueue("Not A Type")


async def test_an_operator_sees_and_acts(client: OjsClient, ojs_nats: EmbeddedNats) -> None:
    from contextlib import AsyncExitStack

    from penstock.app import open_link
    from penstock.hall import Hall

    job = await client.enqueue("wrong", retry={"on_exhaustion": "dead_letter"})
    with pytest.raises(TaskFailed):
        await job.result(20)
    settings = Settings(nats=NatsSettings(url=ojs_nats.url))
    async with AsyncExitStack() as stack:
        admin = await open_admin(Hall(settings, stack, open_link))
        assert "default" in [queue.name for queue in await admin.queues()]
        dead = await admin.find(state="dead")
        assert [view.work_id for view in dead.items] == [job.id]
        assert dead.items[0].error == "never"
        assert (await admin.act("drop", "", [])).changed == 1
        assert await admin.show("wrong", job.id) is None
        assert (await admin.act("pause", "mail", [])).changed == 1
        assert [q.paused for q in await admin.queues() if q.name == "mail"] == [True]
