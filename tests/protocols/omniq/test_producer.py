"""Producing for tasks: what was declared travels with the job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.core.errors import BadInput
from penstock.core.policy import Backoff, BackoffKind
from penstock.core.registry import Registry
from penstock.core.task import length_of_time
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.errors import BadPayload
from penstock.protocols.omniq.producer import Producer
from tests.protocols.omniq.stories import leased


async def resize(image: str, width: int = 800) -> None: ...


async def report(day: str) -> None: ...


async def count(number: int) -> None: ...


async def beat() -> None: ...


@pytest.fixture
async def client(redis_server: EmbeddedRedis) -> AsyncIterator[OmniqClient]:
    async with OmniqClient(redis_server.url) as made:
        yield made


@pytest.fixture
def jobs(client: OmniqClient, queue: str) -> Producer:
    tasks = Registry()
    tasks.add(resize, names={"omniq": queue})
    backoff = Backoff(BackoffKind.CONSTANT, length_of_time("250ms") or Backoff().base)
    tasks.add(report, retries=6, backoff=backoff, queue=f"{queue}-report")
    tasks.add(count, input="whole")
    tasks.add(beat, names={"omniq": f"{queue}-beat"})
    return Producer(client, tasks)


async def test_arguments_travel_by_name_under_the_contracts_defaults(
    jobs: Producer, client: OmniqClient, queue: str
) -> None:
    published = await jobs.enqueue(resize, "cat.png", width=10)

    job = await client.monitor.get_job(queue, published)
    assert job is not None
    assert job.payload == '{"image":"cat.png","width":10}'
    assert (job.max_attempts, job.backoff_ms, job.timeout_ms) == (3, 5000, 60000)


async def test_the_tasks_policy_is_stamped_on_the_job(
    jobs: Producer, client: OmniqClient, queue: str
) -> None:
    published = await jobs.enqueue("report", day="monday")
    other = await jobs.having(max_attempts=2).enqueue(report, day="tuesday")

    job = await client.monitor.get_job(f"{queue}-report", published)
    differs = await client.monitor.get_job(f"{queue}-report", other)
    assert job is not None
    assert differs is not None
    assert (job.max_attempts, job.backoff_ms) == (7, 250)
    assert (differs.max_attempts, differs.backoff_ms) == (2, 250)


async def test_a_job_may_be_given_a_group_an_id_and_a_time(
    jobs: Producer, client: OmniqClient, queue: str
) -> None:
    ann = jobs.having(gid="ann", group_limit=2)
    published = await ann.having(job_id="x").enqueue(resize, image="a")
    again = await ann.having(job_id="x").enqueue(resize, image="b")

    assert (published, published.kept, again.kept) == ("x", False, True)
    assert (await leased(client, queue)).gid == "ann"


async def test_no_arguments_are_an_empty_object(
    jobs: Producer, client: OmniqClient, queue: str
) -> None:
    await jobs.enqueue(beat)

    assert (await leased(client, f"{queue}-beat")).payload == "{}"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [({"width": 1}, BadInput), ({"image": 5}, BadInput), ({"image": "a", "hue": 1}, BadInput)],
)
async def test_an_input_that_does_not_fit_is_told_before_it_travels(
    jobs: Producer, client: OmniqClient, queue: str, arguments: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await jobs.enqueue(resize, **arguments)

    assert (await client.monitor.counts(queue)).wait == 0


async def test_a_bare_value_is_no_payload_of_omniq(jobs: Producer) -> None:
    with pytest.raises(BadPayload):
        await jobs.enqueue(count, 5)
