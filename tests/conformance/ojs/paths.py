"""Paths into a JSON document: ``$.jobs[?(@.id=='x')].args[0].name``, ``$.crons[*].name``.

A missing member ends the walk with `None`; only a step that makes no sense (an index out of
range, a member of something that is no object) is an error.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["PathError", "found", "text_form"]

_PART = re.compile(r"(?P<name>[^.\[\]]*)(?P<brackets>(?:\[[^\]]*\])*)")
_BRACKET = re.compile(r"\[([^\]]*)\]")
_FILTER = re.compile(r"\?\(@\.(?P<key>[^=]+?)==(?P<value>.*)\)")


class PathError(Exception):
    """A path does not fit the document."""


def found(document: Any, path: str, *, dotted_keys: bool = False) -> Any:
    """What ``path`` leads to. With ``dotted_keys``, a member whose own name holds dots is found
    by trying the longest name first."""
    parts = _split(path.removeprefix("$."))
    return _walk(document, parts, dotted_keys)


def text_form(value: Any) -> str:
    """A value as text: strings as they are, whole numbers without a point, the rest as JSON."""
    import json

    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, separators=(",", ":"))


def _split(path: str) -> list[str]:
    """Cut at dots outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(path):
        depth += (char == "[") - (char == "]")
        if char == "." and depth == 0:
            parts.append(path[start:at])
            start = at + 1
    return [*parts, path[start:]]


def _walk(value: Any, parts: list[str], dotted: bool) -> Any:
    at = 0
    while at < len(parts):
        if dotted and isinstance(value, dict) and (taken := _longest(value, parts[at:])):
            value = value[".".join(parts[at : at + taken])]
            at += taken
            continue
        name, brackets = _read(parts[at])
        at += 1
        value = _member(value, name) if name else value
        if value is None and not brackets:
            return None
        for bracket in brackets:
            if bracket == "*":
                return _each(value, parts[at:], dotted)
            value = _taken(value, bracket)
    return value


def _longest(value: dict[str, Any], parts: list[str]) -> int:
    """How many parts together are one name of ``value``; 0 when none of two or more are."""
    for count in range(len(parts), 1, -1):
        if ".".join(parts[:count]) in value:
            return count
    return 0


def _read(part: str) -> tuple[str, list[str]]:
    match = _PART.fullmatch(part)
    if match is None:
        raise PathError(f"cannot read the path part {part!r}")
    return match["name"], _BRACKET.findall(match["brackets"])


def _member(value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise PathError(f"{name!r} is asked of something that is no object")
    return value.get(name)


def _taken(value: Any, bracket: str) -> Any:
    if not isinstance(value, list):
        raise PathError(f"[{bracket}] is asked of something that is no array")
    if match := _FILTER.fullmatch(bracket):
        wanted = match["value"].strip().strip("'\"")
        key = match["key"].strip()
        return next((e for e in value if _says(e, key, wanted)), None)
    if not bracket.isdigit():
        raise PathError(f"cannot read [{bracket}]")
    if int(bracket) >= len(value):
        raise PathError(f"[{bracket}] of an array of {len(value)}")
    return value[int(bracket)]


def _says(element: Any, key: str, wanted: str) -> bool:
    return isinstance(element, dict) and key in element and text_form(element[key]) == wanted


def _each(value: Any, rest: list[str], dotted: bool) -> list[Any]:
    if not isinstance(value, list):
        raise PathError("[*] is asked of something that is no array")
    results = []
    for element in value:
        try:
            result = _walk(element, rest, dotted)
        except PathError:
            continue
        if result is not None:
            results.append(result)
    return results
