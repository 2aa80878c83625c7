"""Outcomes: whatever a handler does becomes one of seven values, fit for every wire."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from penstock.core.codec import encode
from penstock.core.errors import BadInput, ConfigError
from penstock.core.outcome import (
    After,
    Continue,
    Continued,
    Done,
    Failed,
    Reject,
    Retry,
    Snooze,
    Snoozed,
    TaskTimeout,
    Word,
    failure_of,
    outcome_of_error,
    outcome_of_value,
    span,
)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def failed(error: BaseException) -> Failed:
    outcome = outcome_of_error(raised(error))
    assert isinstance(outcome, Failed)
    return outcome


@pytest.mark.parametrize("value", [None, 0, "", {"a": 1}, ValueError("a value like any other")])
def test_a_returned_value_is_done(value: Any) -> None:
    assert outcome_of_value(value) == Done(value)


@pytest.mark.parametrize("verb", [Retry(), Reject(), Snooze(5), Continue(1)])
def test_verbs_mean_the_same_raised_and_returned(verb: Exception) -> None:
    assert outcome_of_value(verb) == outcome_of_error(verb)
    assert not isinstance(outcome_of_value(verb), Done)


def test_an_exception_fails_by_policy() -> None:
    outcome = failed(ValueError("no such day"))

    assert outcome.verdict is Word.BY_POLICY
    assert (outcome.failure.code, outcome.failure.type) == ("handler_error", "ValueError")
    assert outcome.failure.message == "no such day"
    assert "no such day" in outcome.failure.trace


def test_retry_may_name_its_delay() -> None:
    assert failed(Retry("later")).verdict is Word.BY_POLICY
    assert failed(Retry(after=3)).verdict == After(timedelta(seconds=3))
    assert failed(Retry(after=0)).verdict == After(timedelta(0))


def test_reject_and_bad_input_are_final() -> None:
    rejected = failed(Reject("gone", code="order.gone", status=410, data={"id": 1}))

    assert rejected.verdict is Word.NEVER
    assert (rejected.failure.code, rejected.failure.status) == ("order.gone", 410)
    assert rejected.failure.data == {"id": 1}
    assert failed(BadInput("too wide", path="$.width")).verdict is Word.NEVER


def test_bad_input_names_its_path() -> None:
    assert failed(BadInput("too wide", path="$.width")).failure.message == "too wide at $.width"


def test_snooze_and_continue_keep_their_checkpoints() -> None:
    assert outcome_of_error(Snooze(5, checkpoint=[1])) == Snoozed(timedelta(seconds=5), [1])
    assert outcome_of_error(Continue({"page": 2})) == Continued({"page": 2})


def test_errors_keep_their_codes() -> None:
    assert failed(TaskTimeout("30 s are over")).failure.code == "timeout"
    assert failed(ConfigError("x", code="x.y")).failure.code == "x.y"


def test_the_lineage_names_every_class_nearest_first() -> None:
    lineage = failed(FileNotFoundError("x")).failure.lineage

    assert lineage[:2] == ("FileNotFoundError", "builtins.FileNotFoundError")
    assert lineage.index("OSError") < lineage.index("Exception")
    assert "BaseException" not in lineage


def test_what_was_said_on_purpose_has_no_trace() -> None:
    assert failed(Reject("no")).failure.trace == ""
    assert failed(Retry("again")).failure.trace == ""


def test_a_failure_is_bounded_and_can_be_said_in_json() -> None:
    failure = failure_of(raised(ValueError("\udcff" + "ü" * 1_000_000)))

    assert len(encode([failure.message, failure.trace])) < 40_000
    assert failure.message.startswith("\\udcffüü")


def test_an_exception_that_cannot_be_shown_is_still_a_failure() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert failed(Mute()).failure.message == "<its message cannot be shown: RuntimeError>"


@pytest.mark.parametrize(
    "verb",
    [Retry("x", after=5, status=503), Reject("n", data=[1]), Snooze(5, checkpoint=1), Continue({})],
)
def test_verbs_cross_processes(verb: Exception) -> None:
    assert outcome_of_error(pickle.loads(pickle.dumps(verb))) == outcome_of_error(verb)


def test_a_span_is_never_negative() -> None:
    assert span(None) == span(-5) == span(timedelta(days=-1)) == timedelta(0)
    assert span(1.5) == timedelta(seconds=1.5)
