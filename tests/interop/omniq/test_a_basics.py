"""Scenarios 1 to 6: payloads, order, leases, tokens, refusals, due times."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.interop.omniq.sides import Ours, Side, Theirs, code_of
from tests.protocols.omniq.stories import T

PAYLOADS: list[Any] = [
    {"id": 7, "text": "plain"},
    [1, "two", None, True, 2.5],
    {"deep": [{"er": {"": []}}, {}], "n": -1},
    {"größe": 'Ünï 😀 \u2028 \\ " / \n', "zero": "\x00"},
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=["object", "array", "nested", "unicode"])
def test_1_what_one_publishes_the_other_reserves_letter_for_letter(
    pair: tuple[Side, Side], queue: str, raw: Any, payload: Any
) -> None:
    publisher, worker = pair

    job_id = publisher.publish(queue, payload, timeout_ms=1234)
    job = worker.leased(queue, T)

    assert job.job_id == job_id
    assert job.payload == raw.hget(f"{{{queue}}}:job:{job_id}", "payload")
    assert job.payload == json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    assert (job.attempt, job.gid, job.lock_until_ms) == (1, "", T + 1234)
    assert len(job.lease_token) == 40
    int(job.lease_token, 16)


def test_2_a_hundred_jobs_of_both_come_out_in_order_to_both(
    pair: tuple[Side, Side], queue: str
) -> None:
    published = [pair[n % 2].publish(queue, {"n": n}) for n in range(100)]

    assert [pair[n // 2 % 2].taken(queue) for n in range(101)] == [*published, None]


def test_3_each_side_extends_leases_its_own_way_and_the_others_too(
    ours: Ours, theirs: Theirs, queue: str
) -> None:
    for holder in (ours, theirs):
        holder.publish(queue, {}, timeout_ms=1000)
        job = holder.leased(queue, T + 10)
        lease = (queue, job.job_id, job.lease_token)
        assert job.lock_until_ms == T + 1010

        assert ours.heartbeat(*lease, T + 20) == T + 1020
        assert theirs.heartbeat(*lease, T + 30) == T + 2020  # theirs add to the old end
        assert ours.heartbeat(*lease, T + 40) == T + 2020  # ours never shorten
        holder.ack(*lease, T + 50)


def test_4_a_token_of_one_opens_the_lease_for_the_other_and_nothing_else_does(
    pair: tuple[Side, Side], queue: str, raw: Any
) -> None:
    holder, other = pair
    for end in (other.ack, other.fail):
        holder.publish(queue, {})
        job = holder.leased(queue)
        for call in (other.heartbeat, other.ack, other.fail):
            assert code_of(call, queue, job.job_id, "") == "TOKEN_REQUIRED"
            assert code_of(call, queue, job.job_id, "f" * 40) == "TOKEN_MISMATCH"
            assert code_of(call, queue, "nobody", job.lease_token) == "TOKEN_MISMATCH"
        end(queue, job.job_id, job.lease_token)
        for side in pair:
            assert code_of(side.ack, queue, job.job_id, job.lease_token) == "TOKEN_MISMATCH"

    holder.publish(queue, {})
    job = holder.leased(queue)
    raw.zrem(f"{{{queue}}}:active", job.job_id)
    for side in pair:
        side.lawful = False  # the id stands nowhere now, by our own doing
        for call in (side.heartbeat, side.ack, side.fail):
            assert code_of(call, queue, job.job_id, job.lease_token) == "NOT_ACTIVE"


@pytest.mark.parametrize("payload", ["text", 7, None, {"x": float("nan")}, [float("-inf")]])
def test_5_bad_payloads_reach_nobody(ours: Ours, theirs: Theirs, queue: str, payload: Any) -> None:
    assert code_of(ours.publish, queue, payload) == "BAD_PAYLOAD"
    assert theirs.reserve(queue) is None


def test_6_a_due_time_is_kept_to_the_millisecond_by_either_side(
    pair: tuple[Side, Side], queue: str
) -> None:
    publisher, promoter = pair
    job_id = publisher.publish(queue, {}, due_ms=T + 500, now_ms_override=T)

    assert publisher.reserve(queue, T + 600) is None
    assert promoter.promote(queue, T + 499) == 0
    assert promoter.promote(queue, T + 500) == 1
    assert [side.taken(queue, T + 500) for side in pair] == [job_id, None]
