"""Leases are held by a token, renewed by heartbeats, and end exactly once."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.errors import (
    NotActive,
    OmniqError,
    TokenMismatch,
    TokenRequired,
)
from tests.protocols.omniq.stories import T, leased, name_of


async def test_a_heartbeat_extends_from_now_and_never_adds_up(
    client: OmniqClient, queue: str
) -> None:
    await client.publish(queue, {}, timeout_ms=1000, now_ms_override=T)
    job = await leased(client, queue, T)
    beat = (queue, job.job_id, job.lease_token)

    assert await client.heartbeat(*beat, now_ms_override=T + 10) == T + 1010
    assert await client.heartbeat(*beat, now_ms_override=T + 20) == T + 1020


async def test_a_heartbeat_never_shortens_a_lease(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    await client.publish(queue, {}, timeout_ms=1000)
    job = await leased(client, queue, T)
    other_sdk = T + 2010  # theirs add the timeout to the old end
    raw.zadd(f"{{{queue}}}:active", {job.job_id: other_sdk})
    raw.hset(f"{{{queue}}}:job:{job.job_id}", "lock_until_ms", other_sdk)

    assert (
        await client.heartbeat(queue, job.job_id, job.lease_token, now_ms_override=T + 20)
        == other_sdk
    )


async def test_a_lapsed_lease_that_nobody_reaped_is_revived(
    client: OmniqClient, queue: str
) -> None:
    await client.publish(queue, {}, timeout_ms=1000)
    job = await leased(client, queue, T)

    beat = await client.heartbeat(queue, job.job_id, job.lease_token, now_ms_override=T + 5000)

    assert beat == T + 6000
    assert await client.reap_expired(queue, now_ms_override=T + 5999) == 0
    await client.ack_success(queue, job.job_id, job.lease_token, now_ms_override=T + 7000)


@pytest.mark.parametrize("call", ["heartbeat", "ack_success", "ack_fail"])
async def test_the_token_gates_every_word_about_a_lease(
    client: OmniqClient, queue: str, raw: Any, call: str
) -> None:
    await client.publish(queue, {})
    job = await leased(client, queue)
    say = getattr(client, call)

    with pytest.raises(TokenRequired, match="TOKEN_REQUIRED"):
        await say(queue, job.job_id, "")
    with pytest.raises(TokenMismatch, match="TOKEN_MISMATCH"):
        await say(queue, job.job_id, "0" * 40)
    with pytest.raises(TokenMismatch) as caught:
        await say(queue, "nobody", job.lease_token)
    assert caught.value.code == "TOKEN_MISMATCH"
    assert isinstance(caught.value, RuntimeError)
    assert (await client.monitor.counts(queue)).active == 1


@pytest.mark.parametrize("call", ["heartbeat", "ack_success", "ack_fail"])
async def test_a_job_taken_out_of_the_active_lane_is_not_active(
    redis_server: Any, queue: str, raw: Any, call: str
) -> None:
    async with OmniqClient(redis_server.url) as client:
        await client.publish(queue, {})
        job = await leased(client, queue)
        raw.zrem(f"{{{queue}}}:active", job.job_id)

        with pytest.raises(NotActive, match="NOT_ACTIVE"):
            await getattr(client, call)(queue, job.job_id, job.lease_token)


async def test_a_second_ack_is_a_mismatch(client: OmniqClient, queue: str) -> None:
    await client.publish(queue, {})
    job = await leased(client, queue)

    await client.ack_success(queue, job.job_id, job.lease_token)

    with pytest.raises(TokenMismatch):
        await client.ack_success(queue, job.job_id, job.lease_token)
    with pytest.raises(TokenMismatch):
        await client.ack_fail(queue, job.job_id, job.lease_token)


async def test_retry_backoff_and_reaping_keep_to_the_millisecond(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    job_id = await client.publish(
        queue, {}, max_attempts=2, backoff_ms=500, timeout_ms=1000, now_ms_override=T
    )
    first = await leased(client, queue, T + 10)
    failed = await client.ack_fail(
        queue, job_id, first.lease_token, "E: no", now_ms_override=T + 30
    )
    assert failed == ("RETRY", T + 530)
    assert await client.promote_delayed(queue, now_ms_override=T + 529) == 0
    assert await client.promote_delayed(queue, now_ms_override=T + 530) == 1

    second = await leased(client, queue, T + 540)
    assert (second.attempt, second.lease_token != first.lease_token) == (2, True)
    assert await client.reap_expired(queue, now_ms_override=T + 1539) == 0
    assert await client.reap_expired(queue, now_ms_override=T + 1540) == 1

    job = raw.hgetall(f"{{{queue}}}:job:{job_id}")
    assert (job["state"], job["lease_token"], job["lock_until_ms"]) == ("failed", "", "")
    assert (job["last_error"], job["last_error_ms"]) == ("E: no", str(T + 30))
    assert raw.lrange(f"{{{queue}}}:failed", 0, -1) == [job_id]
    with pytest.raises(TokenMismatch):
        await client.ack_success(queue, job_id, second.lease_token)


async def test_the_last_attempt_that_fails_is_final(client: OmniqClient, queue: str) -> None:
    await client.publish(queue, {}, max_attempts=1)
    job = await leased(client, queue)

    assert await client.ack_fail(queue, job.job_id, job.lease_token) == ("FAILED", None)


async def test_no_backoff_still_goes_through_the_delayed_lane(
    client: OmniqClient, queue: str
) -> None:
    await client.publish(queue, {}, backoff_ms=0)
    job = await leased(client, queue, T)

    assert await client.ack_fail(queue, job.job_id, job.lease_token, now_ms_override=T) == (
        "RETRY",
        T,
    )
    assert await client.reserve(queue, now_ms_override=T) is None
    assert await client.promote_delayed(queue, now_ms_override=T) == 1


async def test_a_hundred_completed_jobs_are_kept(client: OmniqClient, queue: str, raw: Any) -> None:
    await client.publish_many(queue, [{"n": n} for n in range(115)])
    for _ in range(115):
        job = await leased(client, queue)
        await client.ack_success(queue, job.job_id, job.lease_token)

    assert raw.llen(f"{{{queue}}}:completed") == 100
    assert len(raw.keys(f"{{{queue}}}:job:*")) == 100


async def test_trimming_never_takes_a_job_that_lives_again(
    redis_server: Any, queue: str, raw: Any
) -> None:
    async with OmniqClient(redis_server.url) as client:
        await client.publish(queue, {"v": "old"}, job_id="x")
        job = await leased(client, queue)
        await client.ack_success(queue, "x", job.lease_token)
        raw.hset(f"{{{queue}}}:job:x", mapping={"state": "wait", "payload": '{"v":"new"}'})
        raw.rpush(f"{{{queue}}}:wait", "x")  # as another SDK uses an id again
        other = f"{queue}-fill"
        await client.publish_many(queue, [{} for _ in range(101)])
        jobs = [await leased(client, queue) for _ in range(102)]
        for done in jobs[1:]:
            await client.ack_success(queue, done.job_id, done.lease_token)

        assert jobs[0].payload == '{"v":"new"}'
        assert raw.hget(f"{{{queue}}}:job:x", "state") == "active"
        assert await client.reserve(other) is None


async def test_every_lease_of_a_job_has_its_own_token(client: OmniqClient, queue: str) -> None:
    await client.publish(queue, {}, max_attempts=9, backoff_ms=0)
    tokens = set()
    for _ in range(5):
        job = await leased(client, queue, T)
        tokens.add(job.lease_token)
        await client.ack_fail(queue, job.job_id, job.lease_token, now_ms_override=T)
        await client.promote_delayed(queue, now_ms_override=T)

    assert len(tokens) == 5


async def test_many_heartbeats_are_answered_one_by_one(client: OmniqClient, queue: str) -> None:
    await client.publish_many(queue, [{}, {}], timeout_ms=1000)
    one, two = await leased(client, queue, T), await leased(client, queue, T)
    await client.ack_success(queue, one.job_id, one.lease_token)

    answers = await client.heartbeat_many(
        queue,
        [(one.job_id, one.lease_token), (two.job_id, two.lease_token), (two.job_id, "")],
        now_ms_override=T + 7,
    )

    assert answers[1] == T + 1007
    assert [answer.code for answer in answers if isinstance(answer, OmniqError)] == [
        "TOKEN_MISMATCH",
        "TOKEN_REQUIRED",
    ]


async def test_a_pause_stops_new_leases_and_nothing_else(client: OmniqClient, queue: str) -> None:
    await client.publish_many(queue, [{}, {}], backoff_ms=0)
    job = await leased(client, queue, T)

    assert await client.pause(queue) == "OK"
    assert await client.is_paused(queue) is True
    paused = await client.reserve(queue)
    assert paused is not None
    assert paused.status == "PAUSED"
    assert await client.heartbeat(queue, job.job_id, job.lease_token) > 0
    await client.ack_fail(queue, job.job_id, job.lease_token, now_ms_override=T)
    assert await client.promote_delayed(queue, now_ms_override=T) == 1
    assert [await client.resume(queue), await client.resume(queue)] == [1, 0]
    assert name_of(await client.reserve(queue)) is not None
