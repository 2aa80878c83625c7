"""Rate limits: what is read, and how starts are counted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.ojs.fields import Fields, object_of
from penstock.protocols.ojs.refusal import Refused
from penstock.protocols.ojs.throttle import RateLimit, Starts, parse_rate_limit

from .making import NOW, later


def limit(**given_: Any) -> RateLimit:
    return parse_rate_limit(Fields(object_of(msgspec.json.encode(given_)), "options.rate_limit"))


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"max_per_second": 2}, RateLimit(max_per_second=2.0)),
        ({"key": "k", "concurrency": 0}, RateLimit(key="k", concurrency=0)),
        ({"key": "k", "rate": {"limit": 5, "period": "minute"}},
         RateLimit(key="k", rate_limit=5, rate_period_s=60.0)),
        ({"key": "k", "rate": 1, "period": "hour"},
         RateLimit(key="k", rate_limit=1, rate_period_s=3600.0)),
        ({"key": "k", "throttle": {"limit": 2, "period": "PT10S"}, "on_limit": "drop"},
         RateLimit(key="k", throttle_limit=2, throttle_period_s=10.0, on_limit="drop")),
    ],
    ids=str,
)  # fmt: skip
def test_every_spelling_is_read(given_: dict[str, Any], expected: RateLimit) -> None:
    assert limit(**given_) == expected


@pytest.mark.parametrize(
    "given_",
    [{"concurrency": 1}, {"key": "!"}, {"max_per_second": 0}, {"key": "k", "rate": {}},
     {"key": "k", "rate": 1, "period": "soon"}, {"key": "k", "on_limit": "cry"},
     {"key": "k", "concurrency": -1}],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_refused(given_: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        limit(**given_)


@given(st.integers(1, 4), st.lists(st.floats(0, 2), max_size=40))
def test_never_more_than_the_limit_in_any_window(most: int, pauses: list[float]) -> None:
    starts, at, taken = Starts(most, timedelta(seconds=1)), 0.0, []
    for pause in pauses:
        at += pause
        free = starts.next_at(later(at)) == later(at)
        assert starts.take(later(at)) == free
        if free:
            taken.append(later(at))
    for first, beyond in zip(taken, taken[most:], strict=False):
        assert beyond - first >= timedelta(seconds=1)


def test_a_limit_of_zero_never_lets_through() -> None:
    starts = Starts(0, timedelta(seconds=1))
    assert starts.next_at(NOW) is None
    assert not starts.take(NOW)


def test_a_start_elsewhere_counts_here() -> None:
    starts = Starts(1, timedelta(seconds=1))
    starts.note(later(0.5))
    starts.note(later(0.2))
    assert starts.next_at(later(0.6)) == later(1.5)
