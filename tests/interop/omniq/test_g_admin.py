"""Scenarios 30 to 32: admin calls on each other's jobs, and fan-outs."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.ids import short_token
from tests.interop.omniq.sides import Ours, Side, code_of


def a_failed(side: Side, queue: str, job_id: str, gid: str = "") -> None:
    side.publish(queue, {}, job_id=job_id, gid=gid, max_attempts=1)
    job = side.leased(queue)
    side.fail(queue, job_id, job.lease_token)


def test_30_a_failed_job_of_one_is_retried_by_the_other(
    pair: tuple[Side, Side], queue: str
) -> None:
    maker, admin = pair
    a_failed(maker, queue, "x", gid="g")

    assert code_of(admin.retry_failed, queue, "nobody") == "NO_JOB"
    admin.retry_failed(queue, "x")
    assert code_of(admin.retry_failed, queue, "x") == "NOT_FAILED"

    job = maker.leased(queue)
    assert (job.job_id, job.attempt, job.gid) == ("x", 1, "g")


def test_30_a_batch_retry_answers_for_each(pair: tuple[Side, Side], queue: str) -> None:
    maker, admin = pair
    for n in range(4):
        a_failed(maker, queue, f"f{n}", gid="g" if n % 2 else "")
    maker.publish(queue, {}, job_id="w")

    answers = admin.retry_batch(queue, ["f0", "f1", "f2", "f3", "w", "nobody"])

    assert answers == [
        *((f"f{n}", None) for n in range(4)),
        ("w", "NOT_FAILED"),
        ("nobody", "NO_JOB"),
    ]
    assert {maker.taken(queue) for _ in range(5)} == {"f0", "f1", "f2", "w", None}


def test_30_removing_says_what_is_wrong_in_one_order(pair: tuple[Side, Side], queue: str) -> None:
    maker, admin = pair
    assert code_of(admin.remove, queue, "nobody", "wait") == "NO_JOB"
    maker.publish(queue, {}, job_id="run")
    maker.leased(queue)
    assert code_of(admin.remove, queue, "run", "delayed") == "ACTIVE"
    maker.publish(queue, {}, job_id="u")
    assert code_of(admin.remove, queue, "u", "failed") == "LANE_MISMATCH"
    assert code_of(admin.remove, queue, "u", "gwait") == "LANE_MISMATCH"
    maker.publish(queue, {}, job_id="g", gid="a")
    assert code_of(admin.remove, queue, "g", "wait") == "NOT_IN_LANE"

    admin.remove(queue, "u", "wait")
    admin.remove(queue, "g", "gwait")
    assert maker.reserve(queue) is None


@pytest.mark.parametrize("lane", ["wait", "gwait", "delayed", "failed", "completed"])
def test_30_jobs_are_removed_from_every_lane_in_a_batch(
    pair: tuple[Side, Side], queue: str, raw: Any, lane: str
) -> None:
    maker, admin = pair
    gid = "g" if lane == "gwait" else ""
    due = 4_000_000_000_000 if lane == "delayed" else 0
    for n in range(3):
        maker.publish(queue, {}, job_id=f"j{n}", gid=gid, due_ms=due, max_attempts=1)
    for _ in range(3 if lane in ("failed", "completed") else 0):
        job = maker.leased(queue)
        end = maker.fail if lane == "failed" else maker.ack
        end(queue, job.job_id, job.lease_token)

    answers = admin.remove_batch(queue, lane, ["j0", "j1", "j2", "nobody"])

    assert answers == [("j0", None), ("j1", None), ("j2", None), ("nobody", "NO_JOB")]
    assert raw.keys(f"{{{queue}}}:job:*") == []
    assert maker.reserve(queue) is None


def test_30_more_than_a_hundred_ids_are_refused(ours: Ours, queue: str) -> None:
    many = [f"j{n}" for n in range(101)]

    assert code_of(ours.retry_batch, queue, many) == "BATCH_TOO_LARGE"
    assert code_of(ours.remove_batch, queue, "wait", many) == "BATCH_TOO_LARGE"
    assert code_of(ours.remove_batch, queue, "nonsense", ["x"]) == "BAD_LANE"


def test_31_a_group_stays_ready_until_its_last_job_is_removed(
    pair: tuple[Side, Side], queue: str, raw: Any
) -> None:
    maker, admin = pair
    for name in ("one", "two"):
        maker.publish(queue, {}, job_id=name, gid="g")

    admin.remove(queue, "one", "gwait")
    assert raw.zcard(f"{{{queue}}}:groups:ready") == 1
    admin.remove(queue, "two", "gwait")
    assert raw.zcard(f"{{{queue}}}:groups:ready") == 0


def test_32_children_are_counted_by_both_together(pair: tuple[Side, Side]) -> None:
    one, two = pair
    key = f"fan-{short_token()}"
    one.children(key, 3)
    assert code_of(two.children, key, 3) == "ALREADY_INIT"
    assert code_of(two.children, f"{key}-0", 0) == "BAD_EXPECTED"

    missing = [pair[n % 2].child(key, child) for n, child in enumerate("aabcc")]

    assert missing == [2, 2, 1, 0, -1]
