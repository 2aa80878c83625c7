"""Retry policies: what is read, what is refused, and the delays they give."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from penstock.protocols.ojs.fields import Fields, object_of
from penstock.protocols.ojs.refusal import Refused
from penstock.protocols.ojs.retry import DEFAULT_RETRY, RetryPolicy, delay_after, never_retried
from penstock.protocols.ojs.retry import parse_retry as parse

from .making import dice


def policy(**given: Any) -> RetryPolicy:
    return parse(Fields(object_of(msgspec.json.encode(given)), "options.retry"))


def seconds(chosen: RetryPolicy, failures: int) -> float:
    return delay_after(chosen, failures, dice()).total_seconds()


@pytest.mark.parametrize(
    ("given", "delays"),
    [
        ({}, [1, 2, 4, 8]),
        ({"backoff_strategy": "linear"}, [1, 2, 3, 4]),
        ({"backoff_type": "constant"}, [1, 1, 1, 1]),
        ({"strategy": "none"}, [0, 0, 0, 0]),
        ({"backoff": "polynomial"}, [1, 4, 9, 16]),
        ({"backoff_coefficient": 10, "max_interval": "PT2S"}, [1, 2, 2, 2]),
        ({"initial_interval_ms": 250}, [0.25, 0.5, 1, 2]),
        ({"initial_interval": "1s", "max_interval_ms": 3000}, [1, 2, 3, 3]),
    ],
    ids=str,
)
def test_delays_follow_the_formula(given: dict[str, Any], delays: list[float]) -> None:
    chosen = policy(jitter=False, **given)
    assert [seconds(chosen, n) for n in (1, 2, 3, 4)] == delays


def test_jitter_stays_within_half_and_under_the_ceiling() -> None:
    chosen, chance = policy(initial_interval="PT2S", max_interval="PT2.5S"), dice()
    drawn = [delay_after(chosen, 1, chance) for _ in range(500)]
    assert min(drawn) >= timedelta(seconds=1) and max(drawn) <= timedelta(seconds=2.5)
    assert len(set(drawn)) > 100


def test_no_number_of_failures_overflows() -> None:
    assert seconds(policy(backoff_coefficient=1e300, jitter=False), 10**6) == 300
    assert seconds(policy(backoff_strategy="polynomial", backoff_coefficient=1e9), 10**6) <= 300


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"max_attempts": -1}, "max_attempts"),
        ({"max_attempts": "3"}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"backoff_coefficient": 0.5}, "backoff_coefficient"),
        ({"initial_interval": "soon"}, "initial_interval"),
        ({"initial_interval": "PT0S"}, "initial_interval"),
        ({"initial_interval": "PT9S", "max_interval": "PT1S"}, "max_interval"),
        ({"on_exhaustion": "cry"}, "on_exhaustion"),
        ({"jitter": 1}, "jitter"),
        ({"non_retryable_errors": "auth"}, "non_retryable_errors"),
        ({"backoff_strategy": "wild"}, "backoff_strategy"),
    ],
    ids=str,
)
def test_a_bad_policy_is_a_validation_error_that_names_the_member(
    given: dict[str, Any], named: str
) -> None:
    with pytest.raises(Refused) as told:
        policy(**given)
    refusal = told.value.refusal
    assert (refusal.code, refusal.status) == ("validation_error", 422)
    assert named in refusal.message
    assert refusal.body()["error"]["type"] == "validation_error"


def test_a_partial_policy_merges_with_the_defaults() -> None:
    assert policy() == DEFAULT_RETRY
    assert policy(max_attempts=7, unknown=1) == msgspec.structs.replace(
        DEFAULT_RETRY, max_attempts=7
    )


def test_one_interval_at_odds_with_the_others_default_stands_for_both() -> None:
    assert policy(initial_interval="PT1H").max_interval == "PT1H"
    assert policy(max_interval="PT0.1S").initial_interval == "PT0.1S"


@pytest.mark.parametrize(
    ("name", "never"),
    [("auth.token_expired", True), ("auth", False), ("external.auth.x", False), ("Fatal", True),
     ("fatal", False)],
)  # fmt: skip
def test_a_star_covers_what_stands_below_and_nothing_else(name: str, never: bool) -> None:
    assert never_retried(policy(non_retryable_errors=["auth.*", "Fatal"]), (name,)) is never
