"""The size check names what is too long, and nothing else."""

from __future__ import annotations

from scripts.check_sizes import oversized


def test_what_fits_is_not_named() -> None:
    assert list(oversized("def f():\n" + "    x = 1\n" * 59, "a.py")) == []


def test_a_long_function_is_named_with_its_line() -> None:
    (fault,) = oversized("\nasync def f():\n" + "    x = 1\n" * 60, "a.py")

    assert fault == "a.py:2: f has 61 lines, at most 60"


def test_a_long_file_is_named() -> None:
    (fault,) = oversized("x = 1\n" * 501, "a.py")

    assert fault.startswith("a.py: 501 lines")
