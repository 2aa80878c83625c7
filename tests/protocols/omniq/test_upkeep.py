"""Retry, remove, fan-outs, monitors: the calls of people and of other programs."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.errors import OmniqError
from tests.protocols.omniq.stories import T, leased, name_of


async def a_failed_job(client: OmniqClient, queue: str, job_id: str, gid: str = "") -> None:
    await client.publish(queue, {}, job_id=job_id, gid=gid, max_attempts=1)
    job = await leased(client, queue)
    await client.ack_fail(queue, job_id, job.lease_token, "E: why")


async def code_of(awaitable: Any) -> str:
    with pytest.raises(OmniqError) as caught:
        await awaitable
    return caught.value.code


async def test_a_failed_job_gets_all_its_attempts_again(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    await a_failed_job(client, queue, "x")

    await client.retry_failed(queue, "x")

    job = raw.hgetall(f"{{{queue}}}:job:x")
    assert (job["state"], job["attempt"], job["due_ms"]) == ("wait", "0", "")
    assert (await leased(client, queue)).attempt == 1
    assert await code_of(client.retry_failed(queue, "x")) == "NOT_FAILED"
    assert await code_of(client.retry_failed(queue, "nobody")) == "NO_JOB"


async def test_a_batch_retry_answers_for_each_id(client: OmniqClient, queue: str) -> None:
    for n in range(12):
        await a_failed_job(client, queue, f"f{n}", gid="g" if n % 2 else "")
    await client.publish(queue, {}, job_id="w")

    ids = [f"f{n}" for n in range(12)] + ["w", "", "nobody"]
    items = await client.retry_failed_batch(queue, ids)

    assert [item.job_id for item in items] == ids
    assert all(item == (item.job_id, "OK", None) for item in items[:12])
    assert [item.reason for item in items[12:]] == ["NOT_FAILED", "BAD_JOB_ID", "NO_JOB"]
    assert await client.retry_failed_batch(queue, []) == []
    with pytest.raises(ValueError, match="BATCH_TOO_LARGE"):
        await client.retry_failed_batch(queue, ["x"] * 101)


async def test_remove_says_what_is_wrong_in_the_order_of_the_reference(
    client: OmniqClient, queue: str
) -> None:
    assert await code_of(client.remove_job(queue, "nobody", "wait")) == "NO_JOB"
    await client.publish(queue, {}, job_id="run")
    await leased(client, queue)
    assert await code_of(client.remove_job(queue, "run", "delayed")) == "ACTIVE"
    await client.publish(queue, {}, job_id="u")
    assert await code_of(client.remove_job(queue, "u", "failed")) == "LANE_MISMATCH"
    assert await code_of(client.remove_job(queue, "u", "nonsense")) == "LANE_MISMATCH"  # type: ignore[arg-type]
    assert await code_of(client.remove_job(queue, "u", "gwait")) == "LANE_MISMATCH"
    await client.publish(queue, {}, job_id="g", gid="a")
    assert await code_of(client.remove_job(queue, "g", "wait")) == "NOT_IN_LANE"


async def test_a_job_can_be_removed_from_every_lane(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    await a_failed_job(client, queue, "failed")
    await client.publish(queue, {}, job_id="done")
    job = await leased(client, queue)
    await client.ack_success(queue, "done", job.lease_token)
    await client.publish(queue, {}, job_id="late", due_ms=T, now_ms_override=T - 1)
    await client.publish(queue, {}, job_id="u")
    await client.publish(queue, {}, job_id="g", gid="a")

    for job_id, lane in (
        ("failed", "failed"),
        ("done", "completed"),
        ("late", "delayed"),
        ("u", "wait"),
        ("g", "gwait"),
    ):
        assert await client.remove_job(queue, job_id, lane) == "OK"  # type: ignore[arg-type]

    assert raw.keys(f"{{{queue}}}:job:*") == []


async def test_a_group_is_ready_as_long_as_jobs_are_left(client: OmniqClient, queue: str) -> None:
    await client.publish_many(queue, [{}, {}], gid="g", now_ms_override=T)
    first, second = [job.job_id for job in await client.monitor.lane_page(queue, "wait", gid="g")]

    await client.remove_job(queue, first, "gwait")
    assert await client.monitor.groups_ready_with_scores(queue) == [("g", T)]
    await client.remove_job(queue, second, "gwait")
    assert await client.monitor.groups_ready(queue) == []


async def test_a_batch_remove_answers_for_each_id(client: OmniqClient, queue: str) -> None:
    names = await client.publish_many(queue, [{} for _ in range(25)])

    items = await client.remove_jobs_batch(queue, "wait", [*names[:24], "", "nobody"])

    assert [item.reason for item in items] == [None] * 24 + ["BAD_JOB_ID", "NO_JOB"]
    assert name_of(await client.reserve(queue)) == names[24]
    with pytest.raises(ValueError, match="BAD_LANE"):
        await client.remove_jobs_batch(queue, "nonsense", ["x"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="BATCH_TOO_LARGE"):
        await client.remove_jobs_batch(queue, "wait", ["x"] * 101)


async def test_children_are_counted_once_each(client: OmniqClient, queue: str, raw: Any) -> None:
    key = f" fan-{queue} "
    await client.childs_init(key, 3)
    assert await code_of(client.childs_init(key, 3)) == "ALREADY_INIT"

    missing = [await client.child_ack(key, child) for child in "aabcc"]

    assert missing == [2, 2, 1, 0, -1]
    assert raw.keys(f"{{cc:{key.strip()}}}:*") == []


@pytest.mark.parametrize("key", ["", "  ", "a{b", "b}", "k" * 129])
async def test_a_fan_out_key_must_be_usable(client: OmniqClient, key: str) -> None:
    assert await code_of(client.childs_init(key, 1)) == "BAD_ARGS"
    assert await code_of(client.child_ack(key, "c")) == "BAD_ARGS"


async def test_a_fan_out_needs_children(client: OmniqClient, queue: str) -> None:
    assert await code_of(client.childs_init(queue, 0)) == "BAD_EXPECTED"
    assert await code_of(client.child_ack(queue, "")) == "CHILD_REQUIRED"


async def test_the_monitor_shows_lanes_as_they_are(client: OmniqClient, queue: str) -> None:
    await a_failed_job(client, queue, "f")
    await client.publish(queue, {"n": 1}, job_id="run", timeout_ms=10, now_ms_override=T)
    await leased(client, queue, T)
    await client.publish(queue, {}, job_id="late", due_ms=T + 1, now_ms_override=T)
    await client.publish_many(queue, [{}, {}], gid="g")
    await client.publish(queue, {}, job_id="w")

    look = client.monitor
    counts = await look.counts(queue)
    overview = await look.overview(queue)

    assert (counts.wait, counts.active, counts.delayed, counts.failed) == (1, 1, 1, 1)
    assert (counts.completed, counts.groups_ready, counts.paused) == (0, 1, False)
    [running] = await look.sample_active(queue)
    assert (running.job_id, running.lock_until_ms, running.attempt) == ("run", T + 10, 1)
    assert [job.job_id for job in await look.sample_delayed(queue)] == ["late"]
    assert [job.last_error for job in await look.sample_failed(queue)] == ["E: why"]
    assert [job.job_id for job in await look.find_jobs(queue, ["w", "no", "f"])] == ["w", "f"]
    assert await look.get_job(queue, "no") is None
    assert overview.counts == counts
    assert queue in await look.scan_queues()
    if client._scripts.compat == "v4":
        [stats] = await look.stats_many([queue])
        assert (stats.waiting_total, stats.group_waiting, stats.groups_ready) == (3, 2, 1)
        assert len(overview.lanes["wait"]) == 3


async def test_a_lane_is_paged_forwards_and_backwards(client: OmniqClient, queue: str) -> None:
    names = await client.publish_many(queue, [{} for _ in range(30)], gid="g")

    first = await client.monitor.lane_page(queue, "wait", gid="g")
    last = await client.monitor.lane_page(queue, "wait", gid="g", offset=1, limit=2, reverse=True)
    past = await client.monitor.lane_page(queue, "wait", gid="g", offset=29, limit=9)

    assert [job.job_id for job in first] == names[:25]
    assert [job.job_id for job in last] == [names[28], names[27]]
    assert [job.job_id for job in past] == [names[29]]


async def test_promote_and_reap_stop_at_what_was_asked(client: OmniqClient, queue: str) -> None:
    await client.publish_many(queue, [{} for _ in range(30)], due_ms=T, now_ms_override=T - 1)

    moved = [
        await client.promote_delayed(queue, max_promote=most, now_ms_override=T)
        for most in (7, 1000)
    ]
    await client.reserve_many(queue, 30, now_ms_override=T)
    reaped = [
        await client.reap_expired(queue, max_reap=most, now_ms_override=T + 60_000)
        for most in (7, 1000)
    ]

    assert (moved, reaped) == ([7, 23], [7, 23])


async def test_a_delayed_id_without_a_job_is_dropped(
    redis_server: Any, queue: str, raw: Any
) -> None:
    async with OmniqClient(redis_server.url) as client:
        raw.zadd(f"{{{queue}}}:delayed", {"ghost": 1})

        assert await client.promote_delayed(queue) == 0

        assert raw.keys(f"{{{queue}}}*") == []
