"""Hints: what JSON can be decoded to, and which JSON shapes an annotation accepts."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import inspect as info

from penstock.core.errors import ConfigError
from penstock.core.foreign import is_foreign

__all__ = ["accepts_array", "accepts_object", "foreign_types"]

_DECODABLE: Final = (
    "use JSON types, datetime, UUID, Decimal, enums, dataclasses, TypedDicts, msgspec Structs "
    "or pydantic models"
)
_OBJECTS: Final = (
    info.AnyType,
    info.StructType,
    info.DataclassType,
    info.TypedDictType,
    info.DictType,
    info.CustomType,
)
_ARRAYS: Final = (
    info.AnyType,
    info.ListType,
    info.TupleType,
    info.VarTupleType,
    info.SetType,
    info.FrozenSetType,
    info.NamedTupleType,
    info.CustomType,
)


def accepts_object(hint: Any) -> bool:
    """Whether a JSON object may be decoded to ``hint`` as such."""
    return any(isinstance(arm, _OBJECTS) for arm in _arms(hint))


def accepts_array(hint: Any) -> bool:
    return any(isinstance(arm, _ARRAYS) for arm in _arms(hint))


def foreign_types(hint: Any, where: str) -> list[Any]:
    """The pydantic types within ``hint``.

    Raises `ConfigError`, naming ``where``, for whatever else cannot be decoded from JSON.
    """
    try:
        described = info.type_info(hint)
        msgspec.json.Decoder(hint)
    except Exception as error:  # also for classes with forward references nobody can resolve
        raise ConfigError(f"{where} cannot be decoded: {error}", remedy=_DECODABLE) from error
    odd_types = _custom_types(described, set())
    for odd in odd_types:
        if not is_foreign(odd):
            spelled = getattr(odd, "__qualname__", None) or str(odd)
            raise ConfigError(
                f"{where} needs a {spelled}, which cannot be decoded from JSON", remedy=_DECODABLE
            )
    return odd_types


def _arms(hint: Any) -> tuple[Any, ...]:
    described = info.type_info(hint)
    while isinstance(described, info.Metadata):
        described = described.type
    return described.types if isinstance(described, info.UnionType) else (described,)


def _custom_types(node: Any, seen: set[int]) -> list[Any]:
    if id(node) in seen:  # types may be recursive
        return []
    seen.add(id(node))
    if isinstance(node, info.CustomType):
        return [node.cls]
    if isinstance(node, tuple):
        return [odd for item in node for odd in _custom_types(item, seen)]
    if isinstance(node, (info.Type, info.Field)):
        members = (getattr(node, name) for name in node.__struct_fields__ if "default" not in name)
        return [odd for member in members for odd in _custom_types(member, seen)]
    return []
