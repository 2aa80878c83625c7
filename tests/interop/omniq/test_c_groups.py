"""Scenarios 12 to 14, 16 and 17: groups, their limits and their turns. 15 is in test_c_stress."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.omniq.sides import Ours, Side, Theirs
from tests.protocols.omniq.stories import T


def test_12_the_worked_example_of_the_reference(
    pair: tuple[Side, Side], queue: str, raw: Any
) -> None:
    one, two = pair
    one.publish(queue, {}, job_id="a1", gid="a", group_limit=1, now_ms_override=T + 1)
    two.publish(queue, {}, job_id="a2", gid="a", group_limit=5, now_ms_override=T + 2)
    one.publish(queue, {}, job_id="b1", gid="b", now_ms_override=T + 3)
    two.publish(queue, {}, job_id="u1", now_ms_override=T + 4)

    a1 = one.leased(queue, T + 100)
    taken = [pair[n % 2].taken(queue, T + 100 + n) for n in (1, 2, 3)]

    assert [a1.job_id, *taken] == ["a1", "u1", "b1", None]
    assert raw.get(f"{{{queue}}}:g:a:limit") == "1"
    assert raw.get(f"{{{queue}}}:lane:rr") == "1"
    two.ack(queue, "a1", a1.lease_token, T + 200)
    ready = raw.zrange(f"{{{queue}}}:groups:ready", 0, -1, withscores=True)
    assert ready == [("a", T + 200)]
    assert one.taken(queue, T + 201) == "a2"


def test_13_a_limit_holds_across_both_and_the_count_stays_exact(
    pair: tuple[Side, Side], queue: str, raw: Any
) -> None:
    published = [pair[n % 2].publish(queue, {}, gid="g", group_limit=2) for n in range(5)]
    one, two = pair
    running = [one.leased(queue), two.leased(queue)]
    finished = []
    while running:
        assert one.reserve(queue) is None and two.reserve(queue) is None
        assert raw.get(f"{{{queue}}}:g:g:inflight") == str(len(running))
        job = running.pop(0)
        pair[len(finished) % 2].ack(queue, job.job_id, job.lease_token)
        finished.append(job.job_id)
        if len(finished) + len(running) < 5:
            running.append(pair[len(finished) // 2 % 2].leased(queue))

    assert finished == published
    assert raw.get(f"{{{queue}}}:g:g:inflight") in (None, "0")


def test_14_grouped_and_ungrouped_take_strict_turns(pair: tuple[Side, Side], queue: str) -> None:
    for n in range(3):
        pair[n % 2].publish(queue, {}, job_id=f"g{n}", gid="g", group_limit=9)
        pair[1 - n % 2].publish(queue, {}, job_id=f"u{n}")

    order = [pair[n // 2 % 2].taken(queue, T + n) for n in range(7)]

    assert order == ["g0", "u0", "g1", "u1", "g2", "u2", None]


@pytest.mark.parametrize("way", ["reap", "promote", "retry_failed"])
def test_16_a_group_is_ready_exactly_when_it_has_room_and_work(
    pair: tuple[Side, Side], queue: str, raw: Any, way: str
) -> None:
    one, two = pair

    def ready() -> bool:
        return raw.zscore(f"{{{queue}}}:groups:ready", "g") is not None

    attempts = 1 if way == "retry_failed" else 3
    one.publish(queue, {}, job_id="x", gid="g", max_attempts=attempts, backoff_ms=5)
    assert ready()
    job = one.leased(queue, T)
    assert not ready()
    if way == "reap":
        assert two.reap(queue, T + 60_000) == 1
    else:
        two.fail(queue, "x", job.lease_token, T)
    assert not ready()
    if way == "retry_failed":
        two.retry_failed(queue, "x")
    else:
        assert two.promote(queue, T + 60_005) == 1
    assert ready()

    one.publish(queue, {}, job_id="y", gid="g")
    again = one.leased(queue, T + 70_000)
    assert again.job_id == "x"
    assert not ready()
    two.ack(queue, "x", again.lease_token, T + 70_001)
    assert ready()
    assert two.taken(queue, T + 70_002) == "y"


def test_17_publishing_to_a_ready_group_does_not_move_it(
    ours: Ours, theirs: Theirs, queue: str, raw: Any
) -> None:
    for first in (ours, theirs):
        gid = type(first).__name__
        first.publish(queue, {}, gid=gid, now_ms_override=T)
        for n in range(1, 4):
            ours.publish(queue, {}, gid=gid, now_ms_override=T + n)
        assert raw.zscore(f"{{{queue}}}:groups:ready", gid) == T
