"""Refusals: why an input does not fit, with the path, what was expected, and a way out.

Only ever run after a binding failed, so it may take its time: names close to a misspelled
one are looked up in the type that stands at the path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.core.errors import BadInput, nearest

__all__ = ["missing_field", "refusal", "unknown_field"]

_PATH: Final = re.compile(r" - at `(?:key` in `)?(\$.*)`$", re.DOTALL)
_HEAD: Final = re.compile(r"\$\.([^.\[]+)(.*)", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[([^\]]*)\]")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_EXPECTED: Final = re.compile(r"Expected `([^`]*)`")
_MAX_TEXT: Final = 500


def refusal(error: Exception, kind: type, places: Mapping[str, str]) -> BadInput:
    """The `BadInput` for an ``error`` of decoding to the struct ``kind``.

    ``places`` says where the members of ``kind`` came from, for those that do not stand
    under their own name (``{"width": "$[1]"}``).
    """
    text, path = _split(str(error))
    if found := _UNKNOWN.fullmatch(text):
        return unknown_field(found[1], _names_at(kind, path), _moved(path, places))
    if found := _MISSING.fullmatch(text):
        return missing_field(found[1], _moved(f"{path}.{found[1]}", places))
    said = _foreign_fault(error.__cause__)
    if said is not None:
        text, path = said[0], path + said[1]
    path = _moved(path, places)
    expected = _EXPECTED.search(text)
    wanted = f"{expected[1]} at {path}" if expected else "a value that fits"
    return BadInput(text[:_MAX_TEXT], path=path, remedy=f"send {wanted}")


def unknown_field(name: str, known: Sequence[str], path: str = "$") -> BadInput:
    """Refuse a member nobody declared; the remedy is the nearest name."""
    near = nearest(name, known)
    if near is not None:
        remedy = f"did you mean {near!r}?"
    else:
        remedy = "known: " + ", ".join(known[:12]) if known else "leave it out: nothing is taken"
    return BadInput(f"unknown field {name[:80]!r}", path=f"{path}.{name[:80]}", remedy=remedy)


def missing_field(name: str, path: str) -> BadInput:
    return BadInput(f"{name!r} is required and missing", path=path, remedy=f"add {name!r}")


def _split(text: str) -> tuple[str, str]:
    found = _PATH.search(text)
    return (text[: found.start()], found[1]) if found else (text, "$")


def _moved(path: str, places: Mapping[str, str]) -> str:
    head = _HEAD.fullmatch(path)
    if head is None or head[1] not in places:
        return path
    return places[head[1]] + head[2]


def _foreign_fault(cause: BaseException | None) -> tuple[str, str] | None:
    """Message and path of the first fault pydantic found, told from its shape alone."""
    if not type(cause).__module__.startswith("pydantic"):
        return None
    errors = getattr(cause, "errors", None)
    faults = errors(include_url=False) if callable(errors) else ()
    if not faults:
        return None
    steps = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in faults[0]["loc"])
    return faults[0]["msg"], steps


# The type at a path -------------------------------------------------------------------


def _names_at(kind: type, path: str) -> list[str]:
    """The member names of whatever object type stands at ``path`` within ``kind``."""
    here: list[Any] = [msgspec.inspect.type_info(kind)]
    for step in _STEP.finditer(path[1:]):
        here = [inner for node in here for inner in _inner(node, step[1])]
    return [f.encode_name for node in here for f in _fields(node)]


def _inner(node: Any, name: str | None) -> list[Any]:
    if name is None:
        under = [getattr(node, part, None) for part in ("item_type", "value_type")]
        under += list(getattr(node, "item_types", ()))
    else:
        under = [f.type for f in _fields(node) if f.encode_name == name]
    return [arm for part in under if part is not None for arm in _arms(part)]


def _arms(node: Any) -> list[Any]:
    if isinstance(node, msgspec.inspect.Metadata):
        return _arms(node.type)
    if isinstance(node, msgspec.inspect.UnionType):
        return [arm for part in node.types for arm in _arms(part)]
    return [node]


def _fields(node: Any) -> Sequence[Any]:
    objects = (
        msgspec.inspect.StructType,
        msgspec.inspect.DataclassType,
        msgspec.inspect.TypedDictType,
    )
    return node.fields if isinstance(node, objects) else ()
