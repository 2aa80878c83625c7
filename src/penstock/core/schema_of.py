"""Schemas of handlers: JSON Schema (draft 2020-12) from a signature, self-contained."""

from __future__ import annotations

from typing import Any, Final, get_args

import msgspec

from penstock.core.foreign import encode_foreign, schema_foreign
from penstock.core.invocation import MISSING
from penstock.core.outcome import HandlerSays
from penstock.core.signature import Parameter, Signature

__all__ = ["input_schema", "output_schema"]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def input_schema(signature: Signature, whole: Any = None, *, only_whole: bool) -> dict[str, Any]:
    """What a body may be: an object by name or, where given, also (or only) the ``whole``."""
    members = [*signature.fields, *([signature.extra] if signature.extra else [])]
    hints = [p.hint for p in members] + ([] if whole is None else [whole])
    schemas, defs = _components(hints)
    own = _object_schema(signature, schemas)
    if whole is not None:
        own = schemas[-1] if only_whole else {"anyOf": [schemas[-1], own]}
    return _document(signature.summary, own, defs)


def output_schema(signature: Signature) -> dict[str, Any] | None:
    """What the handler returns, or ``None`` where the annotation does not say.

    Verbs that a handler may return (`Retry`, `Snooze`, …) are no results and left out.
    """
    hint = _without_verbs(signature.returns)
    if hint is MISSING:
        return None
    try:
        schemas, defs = _components([hint])
    except (TypeError, NotImplementedError):  # a type whose JSON form only its owner knows
        return None
    return _document("", schemas[0], defs)


def _object_schema(signature: Signature, schemas: list[dict[str, Any]]) -> dict[str, Any]:
    properties = {
        p.wire_name: _with_default(p, schema)
        for p, schema in zip(signature.fields, schemas, strict=False)
    }
    extra = schemas[len(signature.fields)] if signature.extra else False
    return {
        "type": "object",
        "properties": properties,
        "required": [p.wire_name for p in signature.fields if p.required],
        "additionalProperties": extra,
    }


def _document(summary: str, schema: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    head = {"$schema": _DIALECT, **({"description": summary} if summary else {})}
    return {**head, **schema, **({"$defs": defs} if defs else {})}


def _with_default(parameter: Parameter, schema: dict[str, Any]) -> dict[str, Any]:
    if parameter.required:
        return schema
    try:
        default = msgspec.to_builtins(parameter.default, str_keys=True, enc_hook=encode_foreign)
    except (TypeError, ValueError, NotImplementedError):
        return schema
    return {**schema, "default": default}


def _components(hints: list[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    raw, defs = msgspec.json.schema_components(
        hints, schema_hook=schema_foreign, ref_template="#/$defs/{name}"
    )
    schemas = [_lift(schema, defs) for schema in raw]
    for name in list(defs):
        defs[name] = _lift(defs[name], defs)
    return schemas, defs


def _lift(schema: Any, defs: dict[str, Any]) -> Any:
    """``schema`` with the ``$defs`` of foreign parts moved into ours, where their refs point."""
    if isinstance(schema, list):
        return [_lift(item, defs) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = schema.get("$defs")
    if isinstance(inner, dict):
        for name, part in inner.items():
            defs.setdefault(name, part)
    return {key: _lift(value, defs) for key, value in schema.items() if key != "$defs"}


def _without_verbs(hint: Any) -> Any:
    arms = [arm for arm in get_args(hint) if _is_verb(arm)]
    if _is_verb(hint):
        return MISSING
    if not arms:
        return hint
    kept: Any = MISSING
    for arm in get_args(hint):
        if not _is_verb(arm):
            kept = arm if kept is MISSING else kept | arm
    return kept


def _is_verb(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, HandlerSays)
