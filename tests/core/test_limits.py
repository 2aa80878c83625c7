"""Rate limits: never more than promised, and a wait that is just long enough."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigError
from penstock.core.limits import SlidingWindow, TokenBucket

steps = st.lists(st.floats(0, 3), max_size=60)


def instants(gaps: list[float]) -> list[float]:
    now, out = 0.0, []
    for gap in gaps:
        now += gap
        out.append(now)
    return out


@given(steps)
def test_a_bucket_never_gives_more_than_burst_and_rate(gaps: list[float]) -> None:
    bucket = TokenBucket(per_second=2, burst=3)

    taken = [now for now in instants(gaps) if bucket.take(now)]

    for i, start in enumerate(taken):
        for j, end in enumerate(taken[i:], start=1):
            assert j <= 3 + 2 * (end - start) + 1e-6


@given(steps)
def test_a_window_never_holds_more_than_its_limit(gaps: list[float]) -> None:
    window = SlidingWindow(limit=3, seconds=2)

    taken = [now for now in instants(gaps) if window.take(now)]

    for start in taken:
        assert sum(start <= at < start + 2 for at in taken) <= 3


def test_after_the_wait_there_is_one_to_take() -> None:
    bucket, window = TokenBucket(per_second=4, burst=1), SlidingWindow(limit=1, seconds=2)
    for limit in (bucket, window):
        assert limit.take(10.0)
        assert not limit.take(10.0)
        assert limit.take(10.0 + limit.wait(10.0))


def test_more_than_the_burst_is_never_to_be_had() -> None:
    assert TokenBucket(per_second=1, burst=2).wait(0, count=3) == float("inf")


def test_a_clock_that_steps_back_gives_nothing_away() -> None:
    bucket, window = TokenBucket(per_second=1, burst=1), SlidingWindow(limit=1, seconds=1)
    for limit in (bucket, window):
        assert limit.take(100.0)
        assert not limit.take(50.0)
        assert not limit.take(100.5)
        assert limit.take(101.0)


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_bucket_that_lets_nothing_through_is_refused(rate: float, burst: float) -> None:
    with pytest.raises(ConfigError):
        TokenBucket(rate, burst)
    with pytest.raises(ConfigError):
        SlidingWindow(int(burst), rate)
