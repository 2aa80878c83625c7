"""Errors say what happened and what to try."""

from __future__ import annotations

import pickle

import pytest

from penstock.core.errors import (
    BadInput,
    ConfigError,
    PenstockError,
    TaskFailed,
    UnknownName,
    nearest,
)


def test_an_error_shows_code_and_remedy() -> None:
    error = ConfigError("no such place", remedy="look elsewhere", code="place.unknown")

    assert str(error) == "no such place [place.unknown]\n  try: look elsewhere"
    assert isinstance(error, PenstockError)


def test_an_error_without_a_remedy_is_one_line() -> None:
    assert str(BadInput("too long")) == "too long [input.invalid]"


def test_each_error_keeps_its_code_to_itself() -> None:
    ConfigError("x", code="special", remedy="y")

    assert (ConfigError.code, ConfigError.remedy) == ("config", "")


def test_an_unknown_name_suggests_the_nearest_one() -> None:
    error = UnknownName("task", "resise", ["resize", "report"])

    assert error.code == "task.unknown"
    assert error.remedy == "did you mean 'resize'?"


def test_an_unknown_name_far_from_all_lists_a_few() -> None:
    error = UnknownName("task", "zzz", [f"job-{n:03}" for n in range(100)])

    assert error.remedy.startswith("known: job-000, job-001")
    assert len(error.remedy) < 200
    assert "nothing of that kind" in UnknownName("task", "zzz", []).remedy


def test_only_names_close_enough_are_near() -> None:
    assert nearest("widht", ["width", "height"]) == "width"
    assert nearest("colour", ["width", "height"]) is None


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("m", remedy="r", code="c"),
        BadInput("m", path="$.a", remedy="r"),
        UnknownName("task", "resise", ["resize"]),
        TaskFailed("resize", "r-1", 500, "broke", {"a": 1}),
    ],
)
def test_errors_cross_processes(error: PenstockError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
