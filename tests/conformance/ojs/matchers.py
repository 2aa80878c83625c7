"""Does a value satisfy a matcher? `misses` says what is wrong, or nothing.

The first thing that decides is the JSON type of the matcher: a word or text, a number, an
array, an object that holds an operator, or an object to be compared member by member.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from tests.conformance.ojs.modes import Mode
from tests.conformance.ojs.paths import text_form

__all__ = ["MISSING", "matches", "unreadable"]

MISSING: Final = None
_TOLERANCE = 0.5

_UUID = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
_UUID7 = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
_INSTANT = re.compile(r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.search(value) is not None


_WORDS: Final[dict[str, Callable[[Any], bool]]] = {
    "any": lambda value: True,
    "absent": lambda value: value is None,
    "exists": lambda value: value is not None,
    "string:nonempty": lambda value: isinstance(value, str) and value != "",
    "string:non_empty": lambda value: isinstance(value, str) and value != "",
    "string:uuid": lambda value: _is_text(value, _UUID),
    "string:uuidv7": lambda value: _is_text(value, _UUID7),
    "string:datetime": lambda value: _is_text(value, _INSTANT),
    "number:positive": lambda value: _is_number(value) and value > 0,
    "number:non_negative": lambda value: _is_number(value) and value >= 0,
    "array:nonempty": lambda value: isinstance(value, list) and len(value) > 0,
    "array:empty": lambda value: isinstance(value, list) and not value,
}


def _holds(value: Any, text: str) -> bool:
    return any(text_form(element) == text for element in value)


_FORMS: Final[list[tuple[re.Pattern[str], Callable[[Any, re.Match[str]], bool]]]] = [
    (
        re.compile(r"array:(?:min_length|min):(\d+)"),
        lambda value, m: isinstance(value, list) and len(value) >= int(m[1]),
    ),
    (
        re.compile(r"array:length[:(](\d+)\)?"),
        lambda value, m: isinstance(value, list) and len(value) == int(m[1]),
    ),
    (
        re.compile(r"contains:(.*)", re.DOTALL),
        lambda value, m: isinstance(value, list) and _holds(value, m[1]),
    ),
    (
        re.compile(r"not_contains:(.*)", re.DOTALL),
        lambda value, m: isinstance(value, list) and not _holds(value, m[1]),
    ),
    (
        re.compile(r"string:contains:(.*)", re.DOTALL),
        lambda value, m: isinstance(value, str) and m[1] in value,
    ),
    (
        re.compile(r"number:range\(\s*(-?[\d.]+)\s*,\s*(-?[\d.]+)\s*\)"),
        lambda value, m: _is_number(value) and float(m[1]) <= value <= float(m[2]),
    ),
    (
        re.compile(r"~(-?\d+(?:\.\d+)?)"),
        lambda value, m: (
            _is_number(value) and abs(value - float(m[1])) <= abs(float(m[1])) * _TOLERANCE
        ),
    ),
    (
        re.compile(r"string:pattern\((.*)\)", re.DOTALL),
        lambda value, m: _is_text(value, re.compile(m[1])),
    ),
]

_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_OPERATORS: Final = ("$exists", "$match", "$in", "$size", "$or", "$empty", "range")
_STRICT_OPERATORS: Final = ("$type", "$gte", "$lte", "$gt", "$lt", "$eq")


def matches(value: Any, matcher: Any, mode: Mode) -> bool:
    """Whether ``value`` (`None` when it is missing) satisfies ``matcher``."""
    match matcher:
        case None:
            return value is None
        case bool():
            return value is matcher
        case str():
            return _text(value, matcher)
        case int() | float():
            return _is_number(value) and abs(value - matcher) <= (
                0 if isinstance(value, int) and isinstance(matcher, int) else 1e-9
            )
        case list():
            return (
                isinstance(value, list)
                and len(value) == len(matcher)
                and all(matches(v, m, mode) for v, m in zip(value, matcher, strict=True))
            )
        case dict():
            return _object(value, matcher, mode)
    raise TypeError(f"{matcher!r} is no matcher")


def unreadable(matcher: Any) -> str | None:
    """What in ``matcher`` the written language does not know; `None` when all is known."""
    if isinstance(matcher, list):
        return next((bad for m in matcher if (bad := unreadable(m))), None)
    if not isinstance(matcher, dict):
        return None
    known = {*_OPERATORS, *_STRICT_OPERATORS}
    for key, inner in matcher.items():
        if key.startswith("$") and key not in known:
            return f"the operator {key} is not known"
        if key in ("$in", "$or") and not isinstance(inner, list):
            return f"{key} wants an array"
        if key == "$type" and inner not in _TYPES:
            return f"the type {inner!r} is not known"
        if not key.startswith("$") and (bad := unreadable(inner)):
            return bad
    return None


def _text(value: Any, matcher: str) -> bool:
    word = _WORDS.get(matcher)
    if word is not None:
        return word(value)
    for pattern, holds in _FORMS:
        if found := pattern.fullmatch(matcher):
            return holds(value, found)
    return isinstance(value, str) and value == matcher


def _object(value: Any, matcher: dict[str, Any], mode: Mode) -> bool:
    for operator in _OPERATORS:
        if operator in matcher:
            return _operated(value, operator, matcher, mode)
    if mode.strict and any(operator in matcher for operator in _STRICT_OPERATORS):
        return all(_compared(value, name, wanted) for name, wanted in matcher.items())
    if not isinstance(value, dict):
        return False
    return all(_member(value, key, inner, mode) for key, inner in matcher.items())


def _member(value: dict[str, Any], key: str, inner: Any, mode: Mode) -> bool:
    if inner == "absent":
        return key not in value
    return key in value and matches(value[key], inner, mode)


def _operated(value: Any, operator: str, matcher: dict[str, Any], mode: Mode) -> bool:
    wanted = matcher[operator]
    match operator:
        case "$exists":
            if (value is not None) is not wanted:
                return False
            return not wanted or "$type" not in matcher or _TYPES[matcher["$type"]](value)
        case "$match":
            return _is_text(value, re.compile(wanted))
        case "$in" | "$or":
            return any(matches(value, member, mode) for member in wanted)
        case "$size":
            if not isinstance(value, list):
                return False
            if isinstance(wanted, dict):
                return len(value) >= int(wanted["$gte"])
            return len(value) == int(wanted)
        case "$empty":
            return not mode.strict or value in (None, "", [], {})
    low, high = wanted.get("min"), wanted.get("max")
    return _is_number(value) and (low is None or value >= low) and (high is None or value <= high)


def _compared(value: Any, operator: str, wanted: Any) -> bool:
    match operator:
        case "$type":
            return _TYPES[wanted](value)
        case "$eq":
            return bool(value == wanted)
        case "$gte":
            return _is_number(value) and value >= wanted
        case "$lte":
            return _is_number(value) and value <= wanted
        case "$gt":
            return _is_number(value) and value > wanted
        case "$lt":
            return _is_number(value) and value < wanted
    return False
