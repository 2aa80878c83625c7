"""JSON Schema as users hand it in: checked itself, then checking values, always bounded.

Stands on ``jsonschema-rs`` (extra ``schema``), which is loaded with the first schema.
References to other documents are refused rather than fetched, and patterns stop after a
bounded search, so that a schema from outside can neither call out nor hang a worker.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from penstock.core import codec
from penstock.core.errors import ConfigError

__all__ = ["Validator"]

_MAX_PROBLEMS: Final = 20
_MAX_MESSAGE_CHARS: Final = 300
_MAX_BACKTRACKS: Final = 100_000


class Validator:
    """One compiled schema. Safe to share between threads."""

    __slots__ = ("_compiled", "schema")

    def __init__(self, schema: dict[str, Any] | bool, compiled: Any) -> None:
        self.schema = schema
        self._compiled = compiled

    @classmethod
    def of(cls, schema: str | bytes | dict[str, Any] | bool) -> Validator:
        """Compile ``schema`` (draft 2020-12 unless it says otherwise).

        Raises `ConfigError` if it is not a valid schema or the extra is not installed.
        """
        if isinstance(schema, (str, bytes)):
            schema = _decoded(schema)
        if not isinstance(schema, (dict, bool)):
            raise ConfigError(
                f"a JSON Schema is an object, not {type(schema).__name__}",
                remedy='give an object such as {"type": "object"}',
                code="schema.invalid",
            )
        return cls(schema, _compile(schema))

    def problems(self, value: Any) -> list[tuple[str, str]]:
        """What is wrong with ``value``, as (path, message), the first twenty; empty if it fits."""
        try:
            faults = islice(self._compiled.iter_errors(value), _MAX_PROBLEMS)
            return [(_path(fault.instance_path), _short(fault.message)) for fault in faults]
        except (ValueError, RecursionError) as error:  # not JSON, or too deep
            return [("$", _short(str(error)))]

    def accepts(self, value: Any) -> bool:
        return not self.problems(value)


def _decoded(text: str | bytes) -> Any:
    try:
        return codec.decode(text)
    except codec.JsonError as error:
        raise ConfigError(
            f"the schema is not JSON: {error}",
            remedy="give the schema as JSON text or as a dict",
            code="schema.invalid",
        ) from error


def _compile(schema: dict[str, Any] | bool) -> Any:
    try:
        import jsonschema_rs
    except ImportError as error:
        raise ConfigError(
            "checking a JSON Schema needs the extra 'schema'",
            remedy="pip install 'penstock[schema]'",
            code="extra.missing",
        ) from error
    try:
        return jsonschema_rs.validator_for(
            schema,
            validate_formats=True,
            offline=True,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACKS),
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        path, text = getattr(error, "instance_path", []), getattr(error, "message", str(error))
        raise ConfigError(
            f"the schema is not valid at {_path(path)}: {_short(text)}",
            remedy="correct it; see https://json-schema.org/draft/2020-12",
            code="schema.invalid",
        ) from error


def _path(steps: list[str | int]) -> str:
    return "$" + "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps)[:200]


def _short(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[: _MAX_MESSAGE_CHARS - 1] + "…"
