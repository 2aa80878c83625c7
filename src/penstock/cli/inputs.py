"""Inputs of a task from the command line: ``key=value`` pairs, JSON text, a file or stdin.

``width=800`` is the number, ``name=ann`` the text; ``id:="007"`` insists on JSON, so that text
which looks like a number can be said too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from penstock.core.codec import JsonError, decode
from penstock.core.invocation import MISSING

__all__ = ["body_of"]


def body_of(pairs: Sequence[str], text: str | None) -> Any:
    """The body to send; `MISSING` when nothing is given. Pairs add to a JSON object.

    ``text`` is JSON, ``@file``, or ``-`` for stdin; ``-`` alone as a pair means stdin too.
    Raises ``UsageError`` that quotes what cannot be read.
    """
    rest = [pair for pair in pairs if pair != "-"]
    if len(rest) < len(pairs):
        if text is not None:
            raise click.UsageError("give the input either with --json or on stdin, not both")
        text = "-"
    base = MISSING if text is None else _json(_read(text), text)
    if not rest:
        return base
    if base is not MISSING and not isinstance(base, dict):
        raise click.UsageError("key=value pairs can only be added to a JSON object")
    given = dict(map(_pair, rest))
    return {**base, **given} if isinstance(base, dict) else given


def _pair(pair: str) -> tuple[str, Any]:
    key, equals, value = pair.partition("=")
    if not equals or not key.strip(":"):
        raise click.UsageError(
            f"{pair!r} is not key=value; a whole JSON input goes with --json, or - for stdin"
        )
    if key.endswith(":"):
        return key[:-1], _json(value, pair)
    try:
        return key, decode(value)
    except JsonError:
        return key, value


def _read(text: str) -> str:
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"cannot read the input: {error}") from error


def _json(text: str, source: str) -> Any:
    try:
        return decode(text)
    except JsonError as error:
        raise click.UsageError(f"{source!r} is not JSON: {error}") from error
