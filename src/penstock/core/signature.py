"""Signatures: what a handler takes, read once, with every mistake told by name.

Annotations may be strings (`from __future__ import annotations`); what cannot be resolved
or decoded from JSON is a `ConfigError` that names the parameter and says what to do.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Union

from penstock.core.context import Context
from penstock.core.errors import ConfigError
from penstock.core.hints import foreign_types
from penstock.core.invocation import MISSING

__all__ = ["Name", "Parameter", "Signature", "read_signature"]

Kind = inspect._ParameterKind

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a parameter in JSON: ``delay_ms: Annotated[int, Name("delayMs")]``."""

    text: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.text):
            raise ConfigError(
                f"Name({self.text!r}) is not a plain member name",
                remedy="use letters, digits, _ and -, starting with a letter",
            )


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. ``hint`` is ``Any`` without annotation, ``default`` ``MISSING`` without."""

    name: str
    wire_name: str
    hint: Any
    kind: Kind
    default: Any = MISSING
    annotated: bool = True
    is_foreign: bool = False

    @property
    def required(self) -> bool:
        return self.default is MISSING


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters JSON can fill, apart from the one that takes the `Context`.

    ``order`` holds the names of all that Python takes by position, the context included.
    ``returns`` is ``MISSING`` where the annotation is missing or cannot be resolved.
    """

    label: str
    fields: tuple[Parameter, ...]
    order: tuple[str, ...]
    context: str | None
    rest: Parameter | None
    extra: Parameter | None
    has_positional_only: bool
    returns: Any
    summary: str = ""

    @property
    def positional(self) -> tuple[Parameter, ...]:
        """The fields that Python takes by position, in order."""
        return tuple(p for p in self.fields if p.kind is not Kind.KEYWORD_ONLY)

    @property
    def has_foreign(self) -> bool:
        """Whether pydantic must help to decode."""
        return any(p.is_foreign for p in self.fields)

    @property
    def takes_keywords_apart(self) -> bool:
        """Whether some arguments can be given by name only."""
        return self.extra is not None or any(p.kind is Kind.KEYWORD_ONLY for p in self.fields)


def read_signature(fn: Callable[..., Any]) -> Signature:
    """What ``fn`` takes. Raises `ConfigError` for what no JSON could call."""
    label = getattr(fn, "__qualname__", None) or repr(fn)
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{label} has no signature to read", remedy="declare a plain def or async def"
        ) from error
    scope = _scope_of(fn)
    context: str | None = None
    taken: list[Parameter] = []
    for raw in signature.parameters.values():
        hint = _resolve(raw.annotation, scope, label, raw.name)
        if not _is_context(hint):
            taken.append(_parameter(raw, hint, label))
        elif context is not None:
            raise ConfigError(
                f"{label} takes a Context twice: {context!r} and {raw.name!r}",
                remedy="keep one of them",
            )
        else:
            context = raw.name
    _refuse_shared_names(taken, label)
    kinds = {raw.name: raw.kind for raw in signature.parameters.values()}
    return Signature(
        label=label,
        fields=tuple(p for p in taken if p.kind not in _STARRED),
        order=tuple(n for n, k in kinds.items() if k in _BY_POSITION),
        context=context,
        rest=next((p for p in taken if p.kind is Kind.VAR_POSITIONAL), None),
        extra=next((p for p in taken if p.kind is Kind.VAR_KEYWORD), None),
        has_positional_only=Kind.POSITIONAL_ONLY in kinds.values(),
        returns=_returned(signature.return_annotation, scope),
        summary=(inspect.getdoc(fn) or "").partition("\n")[0],
    )


_STARRED: Final = (Kind.VAR_POSITIONAL, Kind.VAR_KEYWORD)
_BY_POSITION: Final = (Kind.POSITIONAL_ONLY, Kind.POSITIONAL_OR_KEYWORD)


# Annotations --------------------------------------------------------------------------


def _scope_of(fn: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Globals and locals in which the annotations of ``fn`` mean something.

    `Context` is known even where it was imported for type checkers only.
    """
    target: Any = fn
    while isinstance(target, functools.partial):
        target = target.func
    if not inspect.isroutine(target):
        target = type(target).__call__
    target = inspect.unwrap(target)
    known = dict(getattr(target, "__globals__", {}))
    code, cells = getattr(target, "__code__", None), getattr(target, "__closure__", None)
    local: dict[str, Any] = {} if "Context" in known else {"Context": Context}
    for name, cell in zip(code.co_freevars if code else (), cells or (), strict=False):
        try:
            local[name] = cell.cell_contents
        except ValueError:  # a name that is bound later than the handler
            continue
    return known, local


def _resolve(
    annotation: Any, scope: tuple[dict[str, Any], dict[str, Any]], label: str, name: str
) -> Any:
    if annotation is inspect.Parameter.empty:
        return Any
    try:
        return _meaning(annotation, scope)
    except Exception as error:  # annotations run code of the user's own
        raise ConfigError(
            f"the annotation of parameter {name!r} of {label} cannot be resolved: {error}",
            remedy="import or define its names at module level, outside of `if TYPE_CHECKING`",
        ) from error


def _meaning(annotation: Any, scope: tuple[dict[str, Any], dict[str, Any]]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    known, local = scope
    known.setdefault("__builtins__", builtins)
    return typing.get_type_hints(holder, known, local, include_extras=True)["it"]


def _returned(annotation: Any, scope: tuple[dict[str, Any], dict[str, Any]]) -> Any:
    if annotation is inspect.Signature.empty:
        return MISSING
    try:
        return _meaning(annotation, scope)
    except Exception:  # noqa: BLE001 - only the schema needs it, and can do without
        return MISSING


def _is_context(hint: Any) -> bool:
    if typing.get_origin(hint) is Annotated:
        return _is_context(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (Union, types.UnionType):
        arms = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        return len(arms) == 1 and _is_context(arms[0])
    return isinstance(hint, type) and issubclass(hint, Context)


def _parameter(raw: inspect.Parameter, hint: Any, label: str) -> Parameter:
    default = MISSING if raw.default is inspect.Parameter.empty else raw.default
    wire_name = raw.name
    for extra in _extras(hint):
        if isinstance(extra, Name):
            wire_name = extra.text
        elif type(extra).__module__.partition(".")[0] in ("pydantic", "annotated_types"):
            raise ConfigError(
                f"parameter {raw.name!r} of {label} is annotated with {type(extra).__name__}",
                remedy="use msgspec.Meta(ge=..., max_length=...) on parameters; "
                "inside pydantic models Field is fine",
            )
    if default is None and hint is not Any:
        hint = hint | None if not isinstance(hint, str) else hint
    foreign = foreign_types(hint, f"parameter {raw.name!r} of {label}")
    return Parameter(
        raw.name,
        wire_name,
        hint,
        raw.kind,
        default,
        annotated=raw.annotation is not inspect.Parameter.empty,
        is_foreign=bool(foreign),
    )


def _extras(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) is Annotated:
        return typing.get_args(hint)[1:]
    if typing.get_origin(hint) in (Union, types.UnionType):
        return tuple(extra for arm in typing.get_args(hint) for extra in _extras(arm))
    return ()


def _refuse_shared_names(taken: list[Parameter], label: str) -> None:
    seen: dict[str, str] = {}
    for parameter in taken:
        other = seen.setdefault(parameter.wire_name, parameter.name)
        if other != parameter.name:
            raise ConfigError(
                f"parameters {other!r} and {parameter.name!r} of {label} are both called "
                f"{parameter.wire_name!r}",
                remedy="give one of them another Name",
            )
