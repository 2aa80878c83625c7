"""Groups: first in first out inside, a limit each, and a fair round between them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.wire import ReservedJob
from tests.protocols.omniq.stories import T, leased, name_of


async def test_the_worked_example_of_the_reference(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    await client.publish(queue, {}, job_id="a1", gid="a", group_limit=1, now_ms_override=T + 1)
    await client.publish(queue, {}, job_id="a2", gid="a", group_limit=5, now_ms_override=T + 2)
    await client.publish(queue, {}, job_id="b1", gid="b", now_ms_override=T + 3)
    await client.publish(queue, {}, job_id="u1", now_ms_override=T + 4)

    first = await leased(client, queue, T + 100)
    rest = [name_of(await client.reserve(queue, now_ms_override=T + 101 + n)) for n in range(3)]

    assert [first.job_id, *rest] == ["a1", "u1", "b1", None]
    assert raw.get(f"{{{queue}}}:g:a:limit") == "1"
    assert raw.get(f"{{{queue}}}:lane:rr") == "1"
    await client.ack_success(queue, "a1", first.lease_token, now_ms_override=T + 200)
    assert raw.zrange(f"{{{queue}}}:groups:ready", 0, -1, withscores=True) == [("a", T + 200)]
    assert name_of(await client.reserve(queue, now_ms_override=T + 201)) == "a2"


async def test_grouped_and_ungrouped_jobs_take_turns(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    for n in range(3):
        await client.publish(queue, {}, job_id=f"u{n}")
        await client.publish(queue, {}, job_id=f"g{n}", gid="g", group_limit=9)

    order = [name_of(await client.reserve(queue)) for _ in range(7)]

    assert order == ["g0", "u0", "g1", "u1", "g2", "u2", None]
    assert raw.get(f"{{{queue}}}:lane:rr") == "0"


async def test_the_round_is_the_same_when_many_are_taken_at_once(
    client: OmniqClient, queue: str
) -> None:
    for n in range(3):
        await client.publish(queue, {}, job_id=f"u{n}")
        await client.publish(queue, {}, job_id=f"g{n}", gid="g", group_limit=9)

    jobs = await client.reserve_many(queue, 10)

    assert [job.job_id for job in jobs] == ["g0", "u0", "g1", "u1", "g2", "u2"]  # type: ignore[union-attr]


async def test_a_group_never_runs_more_than_its_limit(client: OmniqClient, queue: str) -> None:
    published = await client.publish_many(queue, [{} for _ in range(5)], gid="g", group_limit=2)

    one, two = await leased(client, queue), await leased(client, queue)

    assert await client.reserve(queue) is None
    await client.ack_fail(queue, two.job_id, two.lease_token)
    three = await leased(client, queue)
    assert [one.job_id, two.job_id, three.job_id] == published[:3]
    assert await client.reserve(queue) is None
    [status] = await client.monitor.group_status(queue, ["g"])
    assert (status.inflight, status.limit, status.ready, status.waiting_count) == (2, 2, False, 2)


async def test_groups_are_served_in_turn(client: OmniqClient, queue: str) -> None:
    for n, gid in enumerate("abcabcabc"):
        await client.publish(
            queue, {}, job_id=f"{gid}{n}", gid=gid, group_limit=9, now_ms_override=T + n
        )

    order = [name_of(await client.reserve(queue, now_ms_override=T + 20 + n)) for n in range(9)]

    assert order == ["a0", "b1", "c2", "a3", "b4", "c5", "a6", "b7", "c8"]


async def test_publishing_to_a_ready_group_does_not_move_it_back(
    client: OmniqClient, queue: str
) -> None:
    for n in range(3):
        await client.publish(queue, {}, gid="busy", now_ms_override=T + n)

    assert await client.monitor.groups_ready_with_scores(queue) == [("busy", T)]


async def test_a_limit_that_comes_late_lets_waiting_jobs_run(
    client: OmniqClient, queue: str
) -> None:
    await client.publish_many(queue, [{}, {}], gid="g")
    await leased(client, queue)
    assert await client.reserve(queue) is None

    await client.publish(queue, {}, gid="g", group_limit=3, due_ms=T, now_ms_override=T - 9)

    assert name_of(await client.reserve(queue)) is not None


@pytest.mark.parametrize("way", ["reap", "promote", "retry_failed"])
async def test_a_job_that_comes_back_makes_its_group_ready(
    client: OmniqClient, queue: str, way: str
) -> None:
    attempts = 1 if way == "retry_failed" else 3
    await client.publish(queue, {}, job_id="x", gid="g", max_attempts=attempts, backoff_ms=5)
    job = await leased(client, queue, T)
    if way == "reap":
        assert await client.reap_expired(queue, now_ms_override=T + 60_000) == 1
        assert await client.promote_delayed(queue, now_ms_override=T + 60_005) == 1
    else:
        await client.ack_fail(queue, "x", job.lease_token, now_ms_override=T)
        if way == "promote":
            assert await client.promote_delayed(queue, now_ms_override=T + 5) == 1
        else:
            await client.retry_failed(queue, "x")

    again = await leased(client, queue, T + 70_000)
    assert (again.job_id, again.attempt) == ("x", 1 if way == "retry_failed" else 2)


async def test_a_group_slot_is_freed_even_when_the_hash_is_gone(
    redis_server: Any, queue: str, raw: Any
) -> None:
    async with OmniqClient(redis_server.url) as client:
        await client.publish(queue, {}, job_id="lost", gid="g")
        await client.publish(queue, {}, job_id="next", gid="g")
        await leased(client, queue, T)
        raw.delete(f"{{{queue}}}:job:lost")

        assert await client.reap_expired(queue, now_ms_override=T + 60_000) == 1

        assert name_of(await client.reserve(queue)) == "next"
        assert raw.get(f"{{{queue}}}:g:g:inflight") == "1"


async def test_a_repair_recounts_groups_that_others_left_blocked(
    redis_server: Any, queue: str, raw: Any
) -> None:
    async with OmniqClient(redis_server.url) as client:
        await client.publish_many(queue, [{}, {}], gid="stuck:with:colons")
        await client.publish(queue, {}, gid="fine")
        raw.set(f"{{{queue}}}:g:stuck:with:colons:inflight", 4)
        raw.zrem(f"{{{queue}}}:groups:ready", "stuck:with:colons")

        repair = await client.rebuild(queue)

        assert repair.groups_mended == 1
        jobs = await client.reserve_many(queue, 9)
        assert isinstance(jobs, list)
        assert sorted(job.gid for job in jobs) == ["fine", "stuck:with:colons"]


async def test_an_ungrouped_job_with_a_gid_from_an_earlier_life_takes_no_slot(
    redis_server: Any, queue: str, raw: Any
) -> None:
    async with OmniqClient(redis_server.url) as client:
        await client.publish(queue, {}, job_id="x")
        raw.hset(f"{{{queue}}}:job:x", "gid", "old")

        job = await leased(client, queue)
        await client.ack_success(queue, "x", job.lease_token)

        assert job.gid == ""
        assert not raw.exists(f"{{{queue}}}:g:old:inflight")


async def test_strange_group_names_work(client: OmniqClient, queue: str) -> None:
    for gid in ("a:b", "{x}", "größe 😀", "*", "wait"):
        await client.publish(queue, {}, gid=gid)

    taken = [await client.reserve(queue) for _ in range(5)]

    assert {job.gid for job in taken if isinstance(job, ReservedJob)} == {
        "a:b",
        "{x}",
        "größe 😀",
        "*",
        "wait",
    }
