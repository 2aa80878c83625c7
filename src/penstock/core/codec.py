"""Strict JSON, the only JSON Penstock speaks.

What cannot be read by every other language is refused here: NaN and infinities, and
input that is not UTF-8 JSON. msgspec would write a NaN as ``null`` in silence, so a
result that holds a ``null`` is looked at once more; all others pay nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

__all__ = ["JsonError", "decode", "encode", "encode_ordered"]

_encoder = msgspec.json.Encoder()
_ordered = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder()


class JsonError(ValueError):
    """A value that is not JSON, or text that is not; the message names the path where known."""


def encode(value: Any) -> bytes:
    """``value`` as compact UTF-8 JSON. Raises `JsonError` for what JSON cannot say."""
    return _checked(value, _encoder)


def encode_ordered(value: Any) -> bytes:
    """As `encode`, with sorted members: equal values give equal bytes (for hashes)."""
    return _checked(value, _ordered)


def decode(data: bytes | bytearray | memoryview | str) -> Any:
    """The value that ``data`` says. Raises `JsonError` with the place of the fault."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise JsonError(str(error)) from error


def _checked(value: Any, encoder: msgspec.json.Encoder) -> bytes:
    try:
        data = encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise JsonError(str(error)) from error
    if b"null" in data:
        _refuse_nan(value, "$")
    return data


def _refuse_nan(value: Any, path: str) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise JsonError(f"{value!r} at {path} is not JSON")
    elif isinstance(value, Mapping):
        for key, member in value.items():
            _refuse_nan(member, f"{path}.{key}")
    elif isinstance(value, (list, tuple, set, frozenset)):
        _refuse_items(value, path)
    elif not isinstance(value, (str, bytes, int, bool, type(None))):
        _refuse_members(value, path)


def _refuse_items(items: Iterable[Any], path: str) -> None:
    for position, item in enumerate(items):
        _refuse_nan(item, f"{path}[{position}]")


def _refuse_members(value: Any, path: str) -> None:
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", ())
    for name in names:
        _refuse_nan(getattr(value, name, None), f"{path}.{name}")
