"""Living with SDK 4.x: their mirrors kept (v4), noticed (v1), and repaired after neglect."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.store import Settle
from penstock.protocols.omniq.wire import ReservedJob
from tests.protocols.omniq.invariants import check_invariants
from tests.protocols.omniq.stories import T, leased


@pytest.fixture
async def v1(redis_server: Any) -> AsyncIterator[OmniqClient]:
    async with OmniqClient(redis_server.url) as client:
        yield client


@pytest.fixture
async def v4(redis_server: Any) -> AsyncIterator[OmniqClient]:
    async with OmniqClient(redis_server.url, compat="v4") as client:
        yield client


async def a_busy_while(client: OmniqClient, queue: str, dice: random.Random) -> None:
    """Some of everything, ending with jobs in every lane."""
    held: list[ReservedJob] = []
    for n in range(120):
        gid = dice.choice(["", "a", "b"])
        due = T if dice.random() < 0.2 else 0
        await client.publish(queue, {"n": n}, gid=gid, group_limit=2, due_ms=due, max_attempts=2)
        if dice.random() < 0.7:
            jobs = await client.reserve_many(queue, 2)
            assert isinstance(jobs, list)
            held += jobs
        while held and dice.random() < 0.6:
            job = held.pop(dice.randrange(len(held)))
            verb = dice.choice(["succeed", "fail", "retry", "reject", "snooze", "release"])
            await client.settle(queue, [Settle(verb, job.job_id, job.lease_token, 10)])
        if dice.random() < 0.1:
            await client.promote_delayed(queue, now_ms_override=T)


async def test_v1_writes_none_of_the_mirrors(v1: OmniqClient, queue: str, raw: Any) -> None:
    await a_busy_while(v1, queue, random.Random(1))

    check_invariants(raw, queue)
    assert not [
        key for key in raw.keys(f"{{{queue}}}:*") if ":idx:" in key or key.endswith(":stats")
    ]
    assert not raw.exists("omniq:queues")


async def test_v4_keeps_every_mirror_true(v4: OmniqClient, queue: str, raw: Any) -> None:
    await a_busy_while(v4, queue, random.Random(2))

    check_invariants(raw, queue, mirrors=True)
    assert not raw.exists("omniq:queues")


async def test_v4_stamps_the_instants_of_a_job(v4: OmniqClient, queue: str, raw: Any) -> None:
    await v4.publish(queue, {}, job_id="x", backoff_ms=0, now_ms_override=T)
    first = await leased(v4, queue, T + 1)
    await v4.ack_fail(queue, "x", first.lease_token, now_ms_override=T + 2)
    await v4.promote_delayed(queue, now_ms_override=T + 3)
    second = await leased(v4, queue, T + 4)
    await v4.ack_success(queue, "x", second.lease_token, now_ms_override=T + 5)

    job = await v4.monitor.get_job(queue, "x")
    stats = await v4.monitor.stats(queue)

    assert job is not None
    assert (job.queued_ms, job.first_started_ms, job.last_started_ms) == (T, T + 1, T + 4)
    assert (job.completed_ms, job.failed_ms) == (T + 5, None)
    assert (stats.last_enqueue_ms, stats.last_reserve_ms) == (T, T + 4)
    assert (stats.last_finish_ms, stats.last_activity_ms) == (T + 5, T + 5)


async def test_a_rebuild_repairs_what_a_v1_client_neglected(
    v1: OmniqClient, v4: OmniqClient, queue: str, raw: Any
) -> None:
    await a_busy_while(v4, queue, random.Random(3))
    await a_busy_while(v1, queue, random.Random(4))
    with pytest.raises(AssertionError):
        check_invariants(raw, queue, mirrors=True)

    await v4.rebuild(queue)

    check_invariants(raw, queue, mirrors=True)


async def test_a_rebuild_of_a_long_queue_goes_in_slices(
    v1: OmniqClient, v4: OmniqClient, queue: str, raw: Any
) -> None:
    await v1.publish_many(queue, [{} for _ in range(1200)])
    await v1.publish_many(queue, [{} for _ in range(600)], gid="g")
    raw.zadd(f"{{{queue}}}:idx:failed", {f"dead-{n}": n for n in range(1500)})

    repair = await v4.rebuild(queue)

    assert repair.jobs_indexed == 1800
    check_invariants(raw, queue, mirrors=True)


async def test_a_v1_client_warns_once_about_clients_of_4(
    redis_server: Any, v4: OmniqClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    await v4.publish(queue, {})
    caplog.set_level(logging.WARNING, "penstock.omniq")
    async with OmniqClient(redis_server.url) as v1:
        await leased(v1, queue)
        await v1.publish(queue, {})

    [record] = caplog.records
    assert queue in record.getMessage()
    assert 'compat="v4"' in record.getMessage()


async def test_a_name_that_4_does_not_take_is_warned_about(
    v1: OmniqClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "penstock.omniq")

    await v1.publish(f"{queue} with spaces", {})

    assert "cannot be used by SDK 4.x" in caplog.text
