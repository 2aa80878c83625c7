"""Errors say what happened and what to try."""

from __future__ import annotations

from penstock.core.errors import BadInput, ConfigError, PenstockError, UnknownName, nearest


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
