"""The ends a lease can have beyond the contract, one by one and fused with the next reserve."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.errors import BadArgs, TokenMismatch
from penstock.protocols.omniq.store import Ended, Settle
from tests.protocols.omniq.stories import T, leased, name_of


async def test_a_retry_may_name_its_own_delay(client: OmniqClient, queue: str) -> None:
    await client.publish(queue, {}, backoff_ms=5)
    job = await leased(client, queue, T)

    [end] = await client.settle(
        queue,
        [Settle.retry(job.job_id, job.lease_token, delay_ms=9000, error="E: later")],
        now_ms_override=T,
    )

    assert end == Ended("RETRY", T + 9000)
    assert await client.promote_delayed(queue, now_ms_override=T + 8999) == 0
    assert await client.promote_delayed(queue, now_ms_override=T + 9000) == 1
    assert (await leased(client, queue)).attempt == 2


async def test_a_retry_at_the_last_attempt_is_a_failure(client: OmniqClient, queue: str) -> None:
    await client.publish(queue, {}, max_attempts=1)
    job = await leased(client, queue)

    ends = await client.settle(queue, [Settle.retry(job.job_id, job.lease_token, delay_ms=1)])

    assert ends == [Ended("FAILED")]


async def test_a_reject_fails_for_good_with_attempts_left(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    await client.publish(queue, {}, max_attempts=9)
    job = await leased(client, queue)

    ends = await client.settle(queue, [Settle.reject(job.job_id, job.lease_token, error="bad: x")])

    assert ends == [Ended("FAILED")]
    stored = raw.hgetall(f"{{{queue}}}:job:{job.job_id}")
    assert (stored["state"], stored["last_error"], stored["max_attempts"]) == (
        "failed",
        "bad: x",
        "9",
    )


async def test_a_snooze_costs_no_attempt_and_keeps_the_notes(
    client: OmniqClient, queue: str
) -> None:
    await client.publish(queue, {}, max_attempts=1, gid="g")
    job = await leased(client, queue, T)

    snooze = Settle.snooze(job.job_id, job.lease_token, delay_ms=50, checkpoint=b"\x00page 2")
    assert await client.settle(queue, [snooze], now_ms_override=T) == [Ended("OK", T + 50)]

    assert await client.promote_delayed(queue, now_ms_override=T + 50) == 1
    again = await leased(client, queue)
    assert (again.attempt, again.returned, again.checkpoint) == (1, 1, b"\x00page 2")
    await client.ack_success(queue, again.job_id, again.lease_token)


async def test_a_snooze_of_nothing_goes_to_the_back_of_the_line(
    client: OmniqClient, queue: str
) -> None:
    await client.publish(queue, {}, job_id="first")
    await client.publish(queue, {}, job_id="second")
    job = await leased(client, queue)

    await client.settle(queue, [Settle.snooze("first", job.lease_token, delay_ms=0)])

    assert [name_of(await client.reserve(queue)) for _ in range(2)] == ["second", "first"]


@pytest.mark.parametrize("gid", ["", "g"])
async def test_a_released_job_is_next_again_and_lost_no_attempt(
    client: OmniqClient, queue: str, gid: str
) -> None:
    await client.publish_many(queue, [{"n": 1}, {"n": 2}], gid=gid)
    job = await leased(client, queue)

    assert await client.settle(queue, [Settle.release(job.job_id, job.lease_token)]) == [
        Ended("OK")
    ]

    again = await leased(client, queue)
    assert (again.job_id, again.attempt, again.returned) == (job.job_id, 1, 1)
    with pytest.raises(TokenMismatch):
        await client.ack_success(queue, job.job_id, job.lease_token)


async def test_a_turn_ends_leases_and_takes_the_next_jobs(client: OmniqClient, queue: str) -> None:
    published = await client.publish_many(queue, [{} for _ in range(5)], gid="g", group_limit=2)
    first = await client.turn(queue, count=5)
    assert [job.job_id for job in first.jobs] == published[:2]

    one, two = first.jobs
    second = await client.turn(
        queue,
        [
            Settle.succeed(one.job_id, one.lease_token),
            Settle.fail(two.job_id, two.lease_token, error="x"),
            Settle.succeed(two.job_id, two.lease_token),
        ],
        count=5,
    )

    assert [end.status for end in second.ended] == ["OK", "RETRY", "TOKEN_MISMATCH"]
    assert second.ended[2].refused
    assert [job.job_id for job in second.jobs] == published[2:4]


async def test_a_turn_on_a_paused_queue_still_ends_leases(client: OmniqClient, queue: str) -> None:
    await client.publish_many(queue, [{}, {}])
    job = await leased(client, queue)
    await client.pause(queue)

    turn = await client.turn(queue, [Settle.succeed(job.job_id, job.lease_token)], count=3)

    assert (turn.ended, turn.jobs, turn.paused) == ([Ended("OK")], [], True)


async def test_a_turn_may_only_settle(client: OmniqClient, queue: str) -> None:
    await client.publish_many(queue, [{}, {}])
    job = await leased(client, queue)

    turn = await client.turn(queue, [Settle.succeed(job.job_id, job.lease_token)], count=0)

    assert (turn.jobs, turn.paused) == ([], False)
    with pytest.raises(BadArgs):
        await client.turn(queue, count=-1)


async def test_a_checkpoint_is_written_only_under_the_lease(
    client: OmniqClient, queue: str
) -> None:
    await client.publish(queue, {}, backoff_ms=0)
    job = await leased(client, queue, T)
    await client.checkpoint(queue, job.job_id, job.lease_token, b"half")
    await client.ack_fail(queue, job.job_id, job.lease_token, now_ms_override=T)
    await client.promote_delayed(queue, now_ms_override=T)

    again = await leased(client, queue)

    assert again.checkpoint == b"half"
    with pytest.raises(TokenMismatch):
        await client.checkpoint(queue, job.job_id, job.lease_token, b"late")
    await client.checkpoint(queue, job.job_id, again.lease_token, b"")


async def test_a_result_is_kept_beside_the_queue_for_its_time(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    await client.publish(queue, {}, job_id="x")
    job = await leased(client, queue)

    await client.settle(
        queue, [Settle.succeed("x", job.lease_token, result=b"[1]", result_ttl_ms=60_000)]
    )

    assert await client.result(queue, "x") == b"[1]"
    assert await client.result(queue, "y") is None
    assert 0 < raw.pttl(f"{{{queue}}}:x:result:x") <= 60_000
