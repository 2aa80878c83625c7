"""Retry policies: how often, how soon, and never past the limit."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigError
from penstock.core.outcome import After, Failure, Word
from penstock.core.policy import Backoff, BackoffKind, GiveUp, RetryIn, RetryPolicy, decide

lengths = st.timedeltas(timedelta(0), timedelta(days=10_000))
backoffs = st.builds(
    Backoff,
    kind=st.sampled_from(BackoffKind),
    base=lengths,
    factor=st.floats(1, allow_infinity=False),
    ceiling=lengths,
    jitter=st.floats(0, 1),
)
counts = st.integers(-5, 10**9)


def a_failure(*lineage: str) -> Failure:
    return Failure("handler_error", lineage[0] if lineage else "E", "m", lineage=lineage)


@given(backoffs, counts, st.integers())
def test_a_delay_is_never_negative_and_never_above_the_ceiling(
    backoff: Backoff, failures: int, seed: int
) -> None:
    assert timedelta(0) <= backoff.delay(failures, Random(seed)) <= backoff.ceiling


@given(backoffs, st.integers(1, 1_000))
def test_without_chance_delays_never_shrink(backoff: Backoff, failures: int) -> None:
    assert backoff.delay(failures) <= backoff.delay(failures + 1)


def test_the_three_kinds_grow_as_they_are_called() -> None:
    def seconds(kind: BackoffKind) -> list[float]:
        backoff = Backoff(kind, base=timedelta(seconds=2), factor=3, ceiling=timedelta(seconds=50))
        return [backoff.delay(n).total_seconds() for n in (1, 2, 3, 4)]

    assert seconds(BackoffKind.CONSTANT) == [2, 2, 2, 2]
    assert seconds(BackoffKind.LINEAR) == [2, 4, 6, 8]
    assert seconds(BackoffKind.EXPONENTIAL) == [2, 6, 18, 50]


def test_jitter_spreads_both_ways_within_its_share() -> None:
    backoff = Backoff(BackoffKind.CONSTANT, base=timedelta(seconds=10), jitter=0.2)
    dice = Random(1)
    delays = [backoff.delay(1, dice).total_seconds() for _ in range(1_000)]

    assert 8 <= min(delays) < 8.5
    assert 11.5 < max(delays) <= 12


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": timedelta(seconds=-1)},
        {"ceiling": timedelta(seconds=-1)},
        {"jitter": 1.1},
        {"jitter": float("nan")},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"factor": float("inf")},
    ],
)
def test_a_backoff_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError) as caught:
        Backoff(**wrong)  # type: ignore[arg-type]

    assert caught.value.remedy


def test_retries_count_what_comes_after_the_first() -> None:
    assert RetryPolicy.of_retries(None).max_attempts is None
    assert RetryPolicy.of_retries(0).max_attempts == 1
    assert RetryPolicy.of_retries(5).max_attempts == 6
    with pytest.raises(ConfigError):
        RetryPolicy.of_retries(-1)
    with pytest.raises(ConfigError):
        RetryPolicy(max_attempts=0)


@given(
    st.integers(1, 50), st.integers(1, 60), st.sampled_from([Word.BY_POLICY, After(timedelta(1))])
)
def test_no_verdict_gets_past_the_limit(limit: int, attempt: int, verdict: Word | After) -> None:
    said = decide(RetryPolicy(limit), a_failure(), verdict, attempt=attempt)

    assert isinstance(said, GiveUp) is (attempt >= limit)


def test_a_delay_the_handler_named_is_kept() -> None:
    said = decide(RetryPolicy(3), a_failure(), After(timedelta(hours=9)), attempt=1)

    assert said == RetryIn(timedelta(hours=9))


def test_never_means_never() -> None:
    policy = RetryPolicy(never=frozenset({"OSError"}))

    assert isinstance(decide(policy, a_failure(), Word.NEVER, attempt=1), GiveUp)
    covered = a_failure("FileNotFoundError", "OSError", "Exception")
    assert isinstance(decide(policy, covered, Word.BY_POLICY, attempt=1), GiveUp)
    other = a_failure("ValueError", "Exception")
    assert isinstance(decide(policy, other, Word.BY_POLICY, attempt=1), RetryIn)


def test_the_nearest_class_wins() -> None:
    policy = RetryPolicy(
        max_attempts=5,
        never=frozenset({"Exception"}),
        by_error={"OSError": RetryPolicy(max_attempts=2)},
    )
    failure = a_failure("FileNotFoundError", "OSError", "Exception")

    assert isinstance(decide(policy, failure, Word.BY_POLICY, attempt=1), RetryIn)
    assert isinstance(decide(policy, failure, Word.BY_POLICY, attempt=2), GiveUp)


def test_a_policy_of_one_error_inherits_the_limit() -> None:
    quick = RetryPolicy(backoff=Backoff(BackoffKind.CONSTANT, base=timedelta(seconds=1)))
    policy = RetryPolicy(max_attempts=2, by_error={"OSError": quick})
    failure = a_failure("OSError")

    assert decide(policy, failure, Word.BY_POLICY, attempt=1) == RetryIn(timedelta(seconds=1))
    assert isinstance(decide(policy, failure, Word.BY_POLICY, attempt=2), GiveUp)


@given(st.integers(0, 20), st.integers(1, 20), st.integers(1, 30))
def test_the_limit_that_came_with_the_work_bounds_every_policy(
    limit: int, own: int, attempt: int
) -> None:
    policy = RetryPolicy(own, by_error={"OSError": RetryPolicy(own)}).limited(limit)

    said = decide(policy, a_failure("OSError"), Word.BY_POLICY, attempt=attempt)

    assert isinstance(said, GiveUp) is (attempt >= min(max(limit, 1), own))


def test_work_without_a_limit_of_its_own_leaves_the_policy_alone() -> None:
    policy = RetryPolicy(7)

    assert policy.limited(None) is policy
