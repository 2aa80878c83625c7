"""``{{steps.<id>.response.body.<path>}}``: words of a case that stand for earlier answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.conformance.ojs.paths import PathError, found, text_form

__all__ = ["Unfilled", "expanded", "expanded_json", "whole_body"]

_TEMPLATE = re.compile(r"\{\{\s*steps\.([^.}]+)\.response\.body\.(.+?)\s*\}\}")
_WHOLE = re.compile(r"(?:\{\{\s*|\$\.)steps\.([^.}]+)\.response\.body(?:\s*\}\})?")


class Unfilled(Exception):
    """A template stands for nothing that was answered."""


def expanded(text: str, bodies: Mapping[str, Any]) -> str:
    """``text`` with its templates filled in. One that cannot be filled stays as it is, which
    then fails by comparison."""

    def value_of(match: re.Match[str]) -> str:
        body = bodies.get(match[1])
        if not isinstance(body, dict):
            return match[0]
        try:
            value = found(body, match[2])
        except PathError:
            return match[0]
        return match[0] if value is None else text_form(value)

    return _TEMPLATE.sub(value_of, text)


def expanded_json(value: Any, bodies: Mapping[str, Any]) -> Any:
    """A JSON value whose text, templates filled in, is read again."""
    text = json.dumps(value, ensure_ascii=False)
    if "{{" not in text:
        return value
    return json.loads(expanded(text, bodies))


def whole_body(reference: str, bodies: Mapping[str, Any]) -> Any:
    """What an ASSERT step refers to: a whole answer, or something inside of one."""
    if match := _WHOLE.fullmatch(reference):
        if match[1] not in bodies:
            raise Unfilled(f"{reference}: no such step has run")
        return bodies[match[1]]
    inner = reference if reference.startswith("{{") else f"{{{{{reference.removeprefix('$.')}}}}}"
    match = _TEMPLATE.fullmatch(inner)
    if match is None:
        return reference
    if match[1] not in bodies:
        raise Unfilled(f"{reference}: no such step has run")
    try:
        return found(bodies[match[1]], match[2])
    except PathError as error:
        raise Unfilled(f"{reference}: {error}") from error
