"""The shape of the settings: every name with its type, and the way from a given value to it."""

from __future__ import annotations

import types
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from penstock.core.task import length_of_time

__all__ = ["Field", "converted", "fields_of", "sections_of", "traits_of", "type_words"]

_WORDS_OF_TRUTH = {"yes": True, "on": True, "no": False, "off": False}


class Field(NamedTuple):
    """One setting: ``worker.grace``, its type, its default and what it is for."""

    path: str
    kind: Any
    default: Any
    about: str


def fields_of(struct: type[Struct], prefix: str = "") -> dict[str, Field]:
    """All settings under ``struct`` by dotted name, in their order of declaration."""
    found: dict[str, Field] = {}
    for info in msgspec.structs.fields(struct):
        path = prefix + info.name
        if _is_struct(info.type):
            found.update(fields_of(info.type, f"{path}."))
        else:
            found[path] = Field(path, info.type, info.default, _about(info.type))
    return found


def sections_of(struct: type[Struct]) -> dict[str, type[Struct]]:
    """The sections right under ``struct`` by name."""
    infos = msgspec.structs.fields(struct)
    return {info.name: info.type for info in infos if _is_struct(info.type)}


def traits_of(kind: Any) -> frozenset[str]:
    """What is noted on a type beyond its values: ``secret``, ``path``."""
    return frozenset(name for meta in _metas(kind) for name in meta.extra or {})


def converted(value: Any, kind: Any, *, lax: bool) -> Any:
    """``value`` as ``kind``. With ``lax`` a text may say a number, a boolean or a list.

    Lengths of time may be written like ``30s``. Raises what is wrong.
    """
    if timedelta in _choices(kind):
        return _length(value)
    if lax and isinstance(value, str):
        choices = [get_origin(choice) or choice for choice in _choices(kind)]
        if any(choice in (list, tuple, set, frozenset) for choice in choices):
            value = [part.strip() for part in value.split(",") if part.strip()]
        elif choices == [bool]:
            value = _WORDS_OF_TRUTH.get(value.lower(), value)
        elif str not in choices and dict in choices:
            value = msgspec.json.decode(value)
    return msgspec.convert(value, kind, strict=not lax)


def type_words(kind: Any) -> str:
    """What people are told that a setting takes: ``number``, ``time``, ``text``, or its choices."""
    words = {int: "number", float: "number", bool: "true or false", str: "text"}
    parts = []
    for choice in _choices(kind):
        if choice is timedelta:
            parts.append("time like 30s")
        elif isinstance(choice, str):
            parts.append(f"`{choice}`")
        elif choice is not type(None):
            parts.append(words.get(choice, "list"))
    return " or ".join(parts)


def _length(value: Any) -> timedelta | None:
    if isinstance(value, bool) or not isinstance(value, (str, int, float, timedelta)):
        raise TypeError("expected a length of time")
    plain = isinstance(value, str) and value.replace(".", "", 1).isdigit()
    length = length_of_time(float(value) if plain and isinstance(value, str) else value)
    if length is not None and length < timedelta(0):
        raise ValueError("a length of time cannot be negative")
    return length


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _choices(kind: Any) -> tuple[Any, ...]:
    """The members of a union, or the values of a ``Literal``, or the type alone."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _choices(get_args(kind)[0])
    if origin in (Union, types.UnionType):
        return tuple(choice for member in get_args(kind) for choice in _choices(member))
    if origin is not None and all(isinstance(value, str) for value in get_args(kind)):
        return get_args(kind)
    return (kind,)


def _metas(kind: Any) -> Iterator[Meta]:
    if get_origin(kind) is Annotated:
        base, *notes = get_args(kind)
        yield from (note for note in notes if isinstance(note, Meta))
        yield from _metas(base)


def _about(kind: Any) -> str:
    return " ".join(meta.description for meta in _metas(kind) if meta.description)
