"""Strict JSON, the only JSON Penstock speaks.

What cannot be read by every other language is refused here: NaN and infinities, and
input that is not UTF-8 JSON. msgspec would write a NaN as ``null`` in silence, so a
result that holds a ``null`` is looked at once more; all others pay nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

__all__ = ["JsonError", "decode", "encode", "encode_ordered"]

_encoder = msgspec.json.Encoder()
_ordered = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder()


class JsonError(ValueError):
    """A value that is not JSON, or text that is not; the message names the path where known."""


def encode(value: Any, encoder: msgspec.json.Encoder = _encoder) -> bytes:
    """``value`` as compact UTF-8 JSON. Raises `JsonError` for what JSON cannot say."""
    try:
        data = encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise JsonError(str(error)) from error
    if b"null" in data:
        _refuse_nan(value, "$")
    return data


def encode_ordered(value: Any) -> bytes:
    """As `encode`, with sorted members: equal values give equal bytes (for hashes)."""
    return encode(value, _ordered)


def decode(data: bytes | bytearray | memoryview | str) -> Any:
    """The value that ``data`` says. Raises `JsonError` with the place of the fault."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise JsonError(str(error)) from error


def _refuse_nan(value: Any, path: str) -> None:
    """Walk all of ``value`` without recursion: it may be as deep as the encoder allows."""
    todo: list[tuple[Any, _Place]] = [(value, (None, path))]
    while todo:
        item, place = todo.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                raise JsonError(f"{item!r} at {_path(place)} is not JSON")
        elif not isinstance(item, (str, bytes, int, type(None))):
            todo.extend((member, (place, step)) for step, member in _members(item))


_Place = tuple[Any, str]  # the place around it, and the last step of the path


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return ((f".{key}", member) for key, member in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return ((f"[{position}]", item) for position, item in enumerate(value))
    names: Any = getattr(value, "__struct_fields__", None)
    names = names or getattr(value, "__dataclass_fields__", ())
    return ((f".{name}", getattr(value, name, None)) for name in names)


def _path(place: _Place) -> str:
    steps: list[str] = []
    around: Any = place
    while around is not None:
        steps.append(around[1])
        around = around[0]
    return "".join(reversed(steps))
