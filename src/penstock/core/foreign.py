"""Foreign types: pydantic models and types, wherever annotations bring them along.

pydantic is never imported from here before a type of its own has been seen. Its models
keep their own rules (strictness, aliases, validators); they are read from JSON and
written by alias, so that what was written can be read again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

__all__ = ["decode_foreign", "encode_foreign", "is_foreign", "schema_foreign"]


def is_foreign(kind: Any) -> bool:
    """Whether pydantic knows how to read ``kind``."""
    return hasattr(kind, "__get_pydantic_core_schema__")


def decode_foreign(kind: Any, value: Any) -> Any:
    """A msgspec ``dec_hook``: ``value`` (JSON as builtins) as ``kind``."""
    if not is_foreign(kind):
        raise NotImplementedError(f"{kind!r} cannot be decoded")
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    return _adapter(kind).validate_json(msgspec.json.encode(value))


def encode_foreign(value: Any) -> Any:
    """A msgspec ``enc_hook``: a foreign ``value`` as JSON-ready builtins."""
    kind: Any = type(value)
    if not is_foreign(kind):
        raise NotImplementedError(f"a {kind.__qualname__} is not JSON")
    return _adapter(kind).dump_python(value, mode="json", by_alias=True)


def schema_foreign(kind: Any) -> dict[str, Any]:
    """A msgspec ``schema_hook``: the JSON Schema of a foreign type, with its own ``$defs``."""
    if not is_foreign(kind):
        raise NotImplementedError(f"{kind!r} has no JSON Schema")
    schema: dict[str, Any] = _adapter(kind).json_schema()
    return schema


@lru_cache(maxsize=1024)
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
