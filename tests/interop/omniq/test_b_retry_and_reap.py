"""Scenarios 7 to 11: backoff, reaping, error texts, retention, ids used again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.omniq.sides import Ours, Side, Theirs, code_of
from tests.protocols.omniq.stories import T


def test_7_retry_backoff_and_reap_agree_to_the_millisecond(
    pair: tuple[Side, Side], queue: str, raw: Any
) -> None:
    one, two = pair
    job_id = one.publish(
        queue, {}, max_attempts=2, backoff_ms=500, timeout_ms=1000, now_ms_override=T
    )
    first = two.leased(queue, T + 10)
    assert one.fail(queue, job_id, first.lease_token, T + 30) == ("RETRY", T + 530)
    assert two.promote(queue, T + 529) == 0
    assert two.promote(queue, T + 530) == 1

    second = one.leased(queue, T + 540)
    assert second.attempt == 2
    assert two.reap(queue, T + 1539) == 0
    assert two.reap(queue, T + 1540) == 1

    job = raw.hgetall(f"{{{queue}}}:job:{job_id}")
    assert (job["state"], job["lease_token"], job["lock_until_ms"]) == ("failed", "", "")
    assert raw.lrange(f"{{{queue}}}:failed", 0, -1) == [job_id]
    for side in pair:
        assert code_of(side.ack, queue, job_id, second.lease_token) == "TOKEN_MISMATCH"


@pytest.mark.parametrize("gid", ["", "g"])
def test_8_a_lease_of_one_is_reaped_by_the_other_and_counts_as_an_attempt(
    pair: tuple[Side, Side], queue: str, gid: str
) -> None:
    holder, reaper = pair
    job_id = holder.publish(queue, {}, timeout_ms=1000, backoff_ms=50, gid=gid)
    late = holder.leased(queue, T)

    assert reaper.reap(queue, T + 1000) == 1
    assert holder.promote(queue, T + 1050) == 1
    again = reaper.leased(queue, T + 1060)

    assert (again.job_id, again.attempt, again.gid) == (job_id, 2, gid)
    assert code_of(holder.ack, queue, job_id, late.lease_token) == "TOKEN_MISMATCH"
    reaper.ack(queue, job_id, again.lease_token, T + 1070)


def test_9_a_long_error_text_of_ours_is_readable_for_them(
    ours: Ours, theirs: Theirs, queue: str, raw: Any, version: str
) -> None:
    job_id = ours.publish(queue, {}, max_attempts=1)
    job = theirs.leased(queue)

    ours.fail(queue, job_id, job.lease_token, error="x" + "ü" * 2500)

    text = raw.hget(f"{{{queue}}}:job:{job_id}", "last_error")
    assert text == "x" + "ü" * 2047
    shown = theirs.peer.call("monitor.get_job", queue=queue, job_id=job_id)
    assert shown["last_error"] == text
    if version.startswith("1"):
        [sample] = theirs.peer.call("monitor.sample_failed", queue=queue)
        assert sample["last_error"] == text


def test_10_of_completions_by_both_the_last_hundred_are_kept(
    pair: tuple[Side, Side], queue: str, raw: Any
) -> None:
    for side in pair:
        side.lawful = False  # looked at once, at the end: 300 looks at 150 jobs would be slow
    published = [pair[n % 2].publish(queue, {"n": n}) for n in range(150)]
    for n in range(150):
        job = pair[n // 2 % 2].leased(queue)
        pair[n // 3 % 2].ack(queue, job.job_id, job.lease_token)
    for side in pair:
        side.lawful = True
        assert side.promote(queue) == 0

    assert raw.lrange(f"{{{queue}}}:completed", 0, -1) == published[:49:-1]
    assert len(raw.keys(f"{{{queue}}}:job:*")) == 100


def test_11_an_id_used_again_is_not_destroyed_when_ours_trim(
    ours: Ours, theirs: Theirs, queue: str, raw: Any
) -> None:
    """Where theirs do the trimming it is: an upstream fault that nobody else can cure."""

    def complete(side: Side) -> str:
        job = side.leased(queue)
        ours.ack(queue, job.job_id, job.lease_token)
        return job.job_id

    ours.lawful = theirs.lawful = False  # their publish leaves the id in completed as well
    theirs.publish(queue, {"life": 1}, job_id="X")
    complete(theirs)
    for n in range(100):
        theirs.publish(queue, {"n": n})
    theirs.publish(queue, {"life": 2}, job_id="X")
    for _ in range(100):
        complete(ours)

    job = theirs.leased(queue)

    assert (job.job_id, job.payload) == ("X", '{"life":2}')
    ours.ack(queue, "X", job.lease_token)
    assert raw.hget(f"{{{queue}}}:job:X", "state") == "completed"


def test_11_an_id_that_ours_use_again_stands_in_one_place_only(
    ours: Ours, theirs: Theirs, queue: str
) -> None:
    for end in (theirs.ack, theirs.fail):
        ours.publish(queue, {"life": 1}, job_id="X", max_attempts=1, gid="old")
        job = theirs.leased(queue)
        end(queue, "X", job.lease_token)

    ours.publish(queue, {"life": 2}, job_id="X")
    job = theirs.leased(queue)

    assert (job.payload, job.attempt, job.gid) == ('{"life":2}', 1, "")
    assert theirs.reserve(queue) is None
