"""Inputs on the command line: what each way of writing means."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from penstock.cli.inputs import body_of
from penstock.core.invocation import MISSING


def test_nothing_given_is_no_input_at_all() -> None:
    assert body_of((), None) is MISSING


@pytest.mark.parametrize(
    ("pair", "means"),
    [
        ("a=1", 1),
        ("a=1.5", 1.5),
        ("a=true", True),
        ("a=null", None),
        ('a={"b":[1]}', {"b": [1]}),
        ("a=ann", "ann"),
        ("a=", ""),
        ("a=x=y", "x=y"),
        ("a=007", "007"),
        ("a=NaN", "NaN"),
        ('a:="7"', "7"),
        ("a:=7", 7),
        ("a=über", "über"),
    ],
)
def test_values_are_json_where_they_parse_and_text_elsewhere(pair: str, means: Any) -> None:
    assert body_of((pair,), None) == {"a": means}


def test_json_comes_as_text_from_a_file_or_from_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.json").write_text("[1, 2]")
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"a": 3}'))

    assert body_of((), '{"a": 1}') == {"a": 1}
    assert body_of((), f"@{tmp_path / 'in.json'}") == [1, 2]
    assert body_of(("-", "b=4"), None) == {"a": 3, "b": 4}


def test_pairs_win_over_members_of_the_object_they_are_added_to() -> None:
    assert body_of(("a=2",), '{"a": 1, "b": 1}') == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("pairs", "text", "told"),
    [
        (("width",), None, "key=value"),
        (("=1",), None, "key=value"),
        (("a:={",), None, "not JSON"),
        ((), "{a: 1}", "not JSON"),
        ((), "@/no/such/file", "cannot read"),
        (("a=1",), "[1]", "JSON object"),
        (("-",), "{}", "not both"),
    ],
)
def test_what_cannot_be_read_is_quoted(pairs: tuple[str, ...], text: str | None, told: str) -> None:
    with pytest.raises(click.UsageError, match=told):
        body_of(pairs, text)
