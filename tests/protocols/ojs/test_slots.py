"""Slots: never more than the policy allows, by any road; and what limits do to jobs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.refusal import Refusal
from penstock.protocols.ojs.slots import LimitRow, grant
from penstock.protocols.ojs.throttle import RateLimit

from .conftest import until
from .stories import ack, fetch, info, nack, push, state, take


def nobody_runs(_job: str, _attempt: int, _granted_ms: int) -> bool:
    return False


@given(
    st.integers(1, 500),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 40)), max_size=60),
)
def test_no_window_ever_has_more_starts_than_its_limit(
    limit: int, asked: list[tuple[int, int]]
) -> None:
    row = LimitRow(key="k", policy=RateLimit(key="k", rate_limit=limit, rate_period_s=1.0))
    at, number, started = 1_000_000, 0, []
    for pause, count in asked:
        at += pause
        jobs = [(f"j{number + n}", 1) for n in range(count)]
        number += count
        row, granted = grant(row, jobs, at, nobody_runs)
        started += [at] * len(granted.ids)
        if len(granted.ids) < count:
            assert granted.again_ms > at
    for first, beyond in zip(started, started[limit:], strict=False):
        assert beyond - first >= 1000
    assert len(row.starts) <= 201


@given(st.integers(0, 5), st.lists(st.sets(st.integers(0, 20), max_size=8), max_size=20))
def test_never_more_slots_than_the_concurrency(limit: int, rounds: list[set[int]]) -> None:
    row = LimitRow(key="k", policy=RateLimit(key="k", concurrency=limit))
    running: set[str] = set()
    for wanted in rounds:
        asked = [(f"j{n}", 1) for n in sorted(wanted) if f"j{n}" not in running]
        row, granted = grant(row, asked, 1, lambda job, _a, _g, now=frozenset(running): job in now)
        running |= set(granted.ids)
        assert len(running) <= limit
        if running and len(wanted) % 2:
            running.pop()


def test_a_throttle_spaces_starts_evenly() -> None:
    row = LimitRow(key="k", policy=RateLimit(key="k", throttle_limit=4, throttle_period_s=2.0))
    row, first = grant(row, [("a", 1), ("b", 1)], 10_000, nobody_runs)
    assert (first.ids, first.again_ms) == (("a",), 10_500)
    row, early = grant(row, [("b", 1)], 10_499, nobody_runs)
    row, due = grant(row, [("b", 1)], 10_500, nobody_runs)
    assert (early.ids, due.ids) == ((), ("b",))


def test_an_override_holds_until_its_time() -> None:
    stopped = LimitRow(key="k", override=RateLimit(concurrency=0), override_until_ms=100)
    assert grant(stopped, [("a", 1)], 99, nobody_runs)[1].ids == ()
    assert grant(stopped, [("a", 1)], 100, nobody_runs)[1].ids == ("a",)


@pytest.mark.parametrize(
    ("on_limit", "becomes"), [("drop", "discarded"), ("reschedule", "scheduled")]
)
async def test_who_does_not_want_to_stand_in_line_does_not(
    engine: Engine, on_limit: str, becomes: str
) -> None:
    limit: dict[str, Any] = {"key": "k", "rate": {"limit": 1, "period": "hour"},
                             "on_limit": on_limit}  # fmt: skip
    ids = [(await push(engine, rate_limit=limit)).id for _ in range(2)]
    assert [r.id for r in await fetch(engine, count=2)] == ids[:1]
    assert await state(engine, ids[1]) == becomes


async def test_a_slot_is_free_again_after_a_nack_and_after_a_lapse(engine: Engine) -> None:
    limit = {"key": "k", "concurrency": 1}
    retry = {"initial_interval": "PT0.05S", "jitter": False, "max_attempts": 9}
    first = await push(engine, rate_limit=limit, retry=retry)
    await take(engine)
    await nack(engine, first.id)
    await take(engine, visibility_ms=200)
    again = await take(engine)
    assert (again.id, again.job.attempt) == (first.id, 3)
    assert not isinstance(await ack(engine, first.id), Refusal)


async def test_a_limited_job_is_passed_over_for_one_that_may_run(engine: Engine) -> None:
    limit = {"key": "k", "concurrency": 1}
    for _ in range(3):
        await push(engine, priority=9, rate_limit=limit)
    free = await push(engine, priority=-9)
    got = await fetch(engine, count=4)
    assert len(got) == 2 and got[-1].id == free.id


async def test_a_queue_may_keep_its_finished_jobs_for_a_time_of_its_own(engine: Engine) -> None:
    from msgspec import Raw

    from penstock.protocols.ojs.queues import parse_queue_config

    shortly = parse_queue_config({"retention": Raw(b'{"completed":"PT0.2S"}')})
    await engine.configure("brief", shortly)
    short, long = await push(engine, queue="brief"), await push(engine)
    for record in await fetch(engine, "brief", "default", count=2):
        await ack(engine, record.id, {"some": "result"})
    await until(lambda: short.id not in engine.shared.books.index)
    assert isinstance(await engine.info(short.id), Refusal)
    assert (await info(engine, long.id)).state == "completed"
