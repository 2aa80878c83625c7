"""Jobs go in and come out: payloads, order, options, duplicates."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocols.omniq import wire
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.errors import BadArgs, BadPayload, JobExists
from penstock.protocols.omniq.store import Draft
from penstock.protocols.omniq.wire import PAUSED, ReservedJob
from tests.protocols.omniq.stories import T, leased, name_of


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        ({"a": 1, "b": [True, None]}, '{"a":1,"b":[true,null]}'),
        ([1, "zwei", {"drei": 3.5}], '[1,"zwei",{"drei":3.5}]'),
        ({"größe": "ö€😀", "q": '"\\'}, '{"größe":"ö€😀","q":"\\"\\\\"}'),
        ({}, "{}"),
        ([], "[]"),
    ],
)
async def test_a_payload_comes_out_as_the_compact_text_that_went_in(
    client: OmniqClient, queue: str, payload: Any, stored: str
) -> None:
    job_id = await client.publish(queue=queue, payload=payload, timeout_ms=1000, now_ms_override=T)
    job = await client.reserve(queue=queue, now_ms_override=T + 10)

    assert isinstance(job, ReservedJob)
    assert (job.status, job.job_id, job.payload) == ("JOB", job_id, stored)
    assert (job.attempt, job.gid, job.lock_until_ms) == (1, "", T + 1010)
    assert len(job.lease_token) == 40
    assert len(job_id) == 26


async def test_a_published_job_has_the_fields_of_the_wire(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    job_id = await client.publish(queue, {"n": 1}, gid="  ann ", group_limit=2, now_ms_override=T)

    job = raw.hgetall(f"{{{queue}}}:job:{job_id}")
    expected = {"id": job_id, "payload": '{"n":1}', "gid": "ann", "state": "wait", "attempt": "0"}
    expected |= {"max_attempts": "3", "timeout_ms": "60000", "backoff_ms": "5000"}
    expected |= {"created_ms": str(T), "updated_ms": str(T)}
    assert expected.items() <= job.items()
    assert raw.get(f"{{{queue}}}:has_groups") == "1"
    assert raw.get(f"{{{queue}}}:g:ann:limit") == "2"


@pytest.mark.parametrize("payload", ["text", b"bytes", 7, None, (1, 2), {1, 2}])
async def test_what_is_no_object_or_array_is_refused(
    client: OmniqClient, queue: str, payload: Any
) -> None:
    with pytest.raises(TypeError, match="BAD_PAYLOAD"):
        await client.publish(queue, payload)
    assert await client.reserve(queue) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
async def test_what_json_cannot_say_is_refused(client: OmniqClient, queue: str, value: Any) -> None:
    with pytest.raises(BadPayload):
        await client.publish(queue, {"deep": [value]})


async def test_jobs_come_out_in_the_order_they_went_in(client: OmniqClient, queue: str) -> None:
    published = [await client.publish(queue, {"n": n}) for n in range(20)]
    reserved = [name_of(await client.reserve(queue)) for _ in range(21)]

    assert reserved == [*published, None]


async def test_a_delayed_job_waits_for_its_instant_and_not_longer(
    client: OmniqClient, queue: str
) -> None:
    job_id = await client.publish(queue, {}, due_ms=T + 100, now_ms_override=T)

    assert await client.reserve(queue, now_ms_override=T + 200) is None
    assert await client.promote_delayed(queue, now_ms_override=T + 99) == 0
    assert await client.promote_delayed(queue, now_ms_override=T + 100) == 1
    assert name_of(await client.reserve(queue, now_ms_override=T + 100)) == job_id


async def test_a_live_id_is_kept_as_it_is(client: OmniqClient, queue: str) -> None:
    first = await client.publish(queue, {"v": 1}, job_id="x")
    again = await client.publish(queue, {"v": 2}, job_id="x")
    with pytest.raises(JobExists, match="EXISTS"):
        await client.publish(queue, {"v": 3}, job_id="x", if_exists="error")

    assert (first, first.kept, again, again.kept) == ("x", False, "x", True)
    job = await leased(client, queue)
    assert job.payload == '{"v":1}'
    assert (await client.publish(queue, {"v": 4}, job_id="x")).kept
    assert await client.reserve(queue) is None


@pytest.mark.parametrize("end", ["completed", "failed"])
async def test_the_id_of_a_finished_job_may_be_used_again(
    client: OmniqClient, queue: str, end: str
) -> None:
    await client.publish(queue, {"v": 1}, job_id="x", gid="old", max_attempts=1)
    job = await leased(client, queue)
    if end == "completed":
        await client.ack_success(queue, "x", job.lease_token)
    else:
        await client.ack_fail(queue, "x", job.lease_token, "no")

    assert not (await client.publish(queue, {"v": 2}, job_id="x")).kept
    again = await leased(client, queue)
    assert (again.payload, again.attempt, again.gid) == ('{"v":2}', 1, "")


async def test_many_jobs_are_published_in_one_go_and_in_order(
    client: OmniqClient, queue: str
) -> None:
    await client.publish(queue, {"n": "old"}, job_id="seven")
    drafts = [Draft(payload={"n": 7}, job_id="seven"), Draft(payload=[8], gid="g", due_ms=T)]

    published = await client.publish_many(queue, [{"n": 1}, *drafts], now_ms_override=T - 1)

    assert [name.kept for name in published] == [False, True, False]
    assert name_of(await client.reserve(queue)) == "seven"
    assert name_of(await client.reserve(queue)) == published[0]
    found = await client.monitor.get_job(queue, published[2])
    assert found is not None
    assert (found.state, found.gid, found.due_ms, found.payload) == ("delayed", "g", T, "[8]")


async def test_bulk_publishing_is_cut_into_slices(client: OmniqClient, queue: str) -> None:
    published = await client.publish_many(queue, ({"n": n} for n in range(1203)))

    assert len(set(published)) == 1203
    jobs = await client.reserve_many(queue, 1000)
    assert jobs is not PAUSED
    assert [job.job_id for job in jobs] == published[:1000]  # type: ignore[union-attr]


async def test_what_another_client_left_behind_is_skipped(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    good = await client.publish(queue, {}, gid="g")
    raw.lpush(f"{{{queue}}}:g:g:wait", "ghost")
    raw.lpush(f"{{{queue}}}:wait", "ghost", "ghost-too")
    if client._scripts.compat == "v4":
        raw.hincrby(f"{{{queue}}}:stats", "group_waiting", 1)
        raw.hincrby(f"{{{queue}}}:stats", "waiting", 2)
        raw.hincrby(f"{{{queue}}}:stats", "waiting_total", 3)

    jobs = await client.reserve_many(queue, 5)

    assert [job.job_id for job in jobs] == [good]  # type: ignore[union-attr]
    assert await client.reserve(queue) is None


def test_the_helpers_of_the_contract() -> None:
    assert wire.queue_base("q") == wire.queue_base("{q}") == "{q}"
    assert wire.queue_base("a{b}c") == "a{b}c"
    with pytest.raises(BadArgs):
        wire.queue_base("")
    assert abs(wire.now_ms() - OmniqClient.now_ms()) < 1000
    assert OmniqClient.ulid() < OmniqClient.ulid() or len(OmniqClient.ulid()) == 26


@pytest.mark.parametrize("wrong", ["3", 2.5, True, None, 2**60])
async def test_a_limit_that_is_no_whole_number_is_refused(
    client: OmniqClient, queue: str, wrong: Any
) -> None:
    with pytest.raises(BadArgs, match="timeout_ms"):
        await client.publish(queue, {}, timeout_ms=wrong)


def test_an_error_text_is_cut_between_characters() -> None:
    cut = wire.cut_error("x" + "ä" * 5000)

    assert 4090 < len(cut) <= 4096
    assert cut.decode().endswith("ä")
    assert wire.cut_error(None) == b""
