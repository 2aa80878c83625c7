"""Bindings: from JSON to a handler's arguments and back, compiled once from its signature.

What fits is decoded strictly (``"1"`` is not ``1``); what does not fit is a `BadInput` that
names the path and a way out. ``bind(body_of(args, kwargs))`` gives the same arguments again.

How a body binds:

* an object by name; an array by position; nothing or ``null`` gives no arguments;
* any other value to the only parameter;
* one object alone in an array by name, unless the first positional takes objects;
* a last object after the positionals gives what can be given by name only;
* a handler with exactly one parameter, of an object type (or unannotated), takes an object
  whole, unless the parameter's name is its only member. ``shape="fields"`` never takes it
  whole, ``shape="whole"`` always, whatever the value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import msgspec
from msgspec import convert
from msgspec.structs import asdict

from penstock.core import codec
from penstock.core.codec import JsonError
from penstock.core.errors import BadInput, ConfigError
from penstock.core.foreign import decode_foreign, encode_foreign
from penstock.core.hints import accepts_array, accepts_object
from penstock.core.invocation import MISSING
from penstock.core.refusal import missing_field, refusal, unknown_field
from penstock.core.schema_of import input_schema, output_schema
from penstock.core.signature import Parameter, Signature, read_signature

__all__ = ["Binding", "Shape"]

Shape = Literal["auto", "fields", "whole"]
_NO_ARGUMENTS: Final = (dict, list, type(None), type(MISSING))
_NOWHERE: Final[Mapping[str, str]] = {}
_LARGEST_INT: Final = 2**63 - 1


class Binding:
    """How one handler is called. Immutable and safe to share between threads."""

    __slots__ = (
        "_bare",
        "_by_position",
        "_extra",
        "_hook",
        "_input",
        "_names",
        "_output",
        "_places",
        "_positional",
        "_reserved",
        "_rest",
        "_struct",
        "_takes_array",
        "_takes_object",
        "_whole",
        "context_parameter",
        "is_async",
        "shape",
        "signature",
    )

    def __init__(self, signature: Signature, *, shape: Shape, is_async: bool) -> None:
        self.signature = signature
        self.shape: Shape = shape
        self.is_async = is_async
        self.context_parameter = signature.context
        self._names = {p.wire_name: p for p in signature.fields}
        self._bare = not signature.fields
        self._reserved = {signature.context, *(p.name for p in signature.fields)}
        self._struct = _struct_of(signature)
        self._hook = decode_foreign if signature.has_foreign else None
        self._rest = _struct_of_one(signature.rest)
        self._extra = _struct_of_one(signature.extra)
        self._by_position = signature.positional
        self._places = {p.wire_name: f"$[{i}]" for i, p in enumerate(signature.positional)}
        self._positional = _passed_by_position(signature)
        self._whole = _whole_parameter(signature, shape)
        self._takes_object = _first_takes_object(signature)
        self._takes_array = self._whole is not None and accepts_array(self._whole.hint)
        self._input: dict[str, Any] | None = None
        self._output: dict[str, Any] | None = None

    @classmethod
    def of(cls, fn: Callable[..., Any], shape: Shape = "auto") -> Binding:
        """Compile the binding of ``fn``. Raises `ConfigError` for what JSON cannot call."""
        target = fn if inspect.isroutine(fn) or isinstance(fn, partial) else type(fn).__call__
        if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
            raise ConfigError(
                f"{getattr(fn, '__qualname__', fn)} is a generator",
                remedy="return the whole result, and report on the way with ctx.progress()",
            )
        return cls(read_signature(fn), shape=shape, is_async=inspect.iscoroutinefunction(target))

    # From JSON to arguments -------------------------------------------------------------

    def bind(self, body: Any, context: Any = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to call the handler with. Raises `BadInput` with the path."""
        rest: tuple[Any, ...] = ()
        values: dict[str, Any]
        if self._bare and not body and isinstance(body, _NO_ARGUMENTS):
            values = {}
        elif self._whole is not None and self._goes_whole(body):
            values = self._bind_whole(self._whole, body)
        elif isinstance(body, dict):
            values = self._bind_object(body)
        elif body is None or body is MISSING:
            values = self._decoded({}, _NOWHERE)
        elif isinstance(body, (list, tuple)):
            values, rest = self._bind_array(body)
        else:
            values = self._bind_whole(self._only_parameter(body), body)
        if self.context_parameter is not None:
            values[self.context_parameter] = context
        if not self._positional:
            return rest, values
        return (*(values.pop(name) for name in self._positional), *rest), values

    def _goes_whole(self, body: Any) -> bool:
        if self.shape == "whole":
            return body is not MISSING
        if not isinstance(body, dict) or self._whole is None:
            return False
        if not body:
            return self._whole.required
        return not (len(body) == 1 and self._whole.wire_name in body)

    def _bind_whole(self, parameter: Parameter, body: Any) -> dict[str, Any]:
        alone = isinstance(body, (list, tuple)) and len(body) == 1 and not self._takes_array
        name = parameter.wire_name
        value, place = (body[0], "$[0]") if alone else (body, "$")
        return self._decoded({name: value}, {name: place})

    def _bind_object(self, body: dict[str, Any]) -> dict[str, Any]:
        if self._extra is None:
            return self._decoded(body, _NOWHERE)
        values = self._decoded({k: v for k, v in body.items() if k in self._names}, _NOWHERE)
        for name, value in body.items():
            if name not in self._names:
                values[name] = self._undeclared(name, value, "$")
        return values

    def _bind_array(self, body: Sequence[Any]) -> tuple[dict[str, Any], tuple[Any, ...]]:
        takes = self._by_position
        if self._is_named(body):
            return self._bind_object(body[0]), ()
        apart: dict[str, Any] | None = None
        if self._ends_with_names(body):
            apart, body = body[-1], body[:-1]
        if len(body) > len(takes) and self._rest is None:
            raise self._too_many(len(body))
        named = {p.wire_name: value for p, value in zip(takes, body, strict=False)}
        if apart is None:
            values = self._decoded(named, self._places)
        else:
            values = self._bind_apart(named, apart, f"$[{len(body)}]")
        if self._rest is None:
            return values, ()
        rest = enumerate(body[len(takes) :], start=len(takes))
        return values, tuple(_decode_one(item, self._rest, f"$[{at}]") for at, item in rest)

    def _bind_apart(
        self, named: dict[str, Any], apart: dict[str, Any], place: str
    ) -> dict[str, Any]:
        """Bind positional values and the object behind them that gives the rest by name."""
        places = dict(self._places)
        others: dict[str, Any] = {}
        for name, value in apart.items():
            if name in named:
                raise _given_twice(name, f"{place}.{name}")
            if name in self._names:
                named[name], places[name] = value, f"{place}.{name}"
            else:
                others[name] = self._undeclared(name, value, place)
        return self._decoded(named, places) | others

    def _undeclared(self, name: str, value: Any, place: str) -> Any:
        """A member for ``**kwargs``, which must not pass for a parameter it does not name."""
        if self._extra is None or name in self._reserved:
            raise unknown_field(name, list(self._names), place)
        return _decode_one(value, self._extra, f"{place}.{name[:80]}")

    def _is_named(self, body: Sequence[Any]) -> bool:
        """Whether an array is one object that binds by name."""
        if len(body) != 1 or not isinstance(body[0], dict):
            return False
        if not self._takes_object:
            return True
        first = self._by_position[:1]
        if not first or first[0].annotated:
            return False
        needed = {p.wire_name for p in self.signature.fields if p.required}
        return needed <= body[0].keys() <= self._names.keys()

    def _ends_with_names(self, body: Sequence[Any]) -> bool:
        if not body or not isinstance(body[-1], dict) or not self.signature.takes_keywords_apart:
            return False
        return self._rest is not None or len(body) > len(self._by_position)

    def _decoded(self, body: dict[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
        try:
            return asdict(convert(body, self._struct, dec_hook=self._hook, str_keys=True))
        except (msgspec.ValidationError, RecursionError) as error:
            raise refusal(error, self._struct, places) from error

    def _only_parameter(self, body: Any) -> Parameter:
        fields = self.signature.fields
        if len(fields) == 1:
            return fields[0]
        raise BadInput(
            f"expected an object, got {_kind_of(body)}",
            remedy=f"send an object with {_listed(fields)}" if fields else "send nothing",
        )

    def _too_many(self, given: int) -> BadInput:
        most = len(self._by_position)
        remedy = f"send at most {most}, or an object by name"
        if len(self.signature.fields) == 1:
            remedy += "; declare the task with input='whole' to take an array as one value"
        return BadInput(
            f"expected at most {most} positional values, got {given}",
            path=f"$[{most}]",
            remedy=remedy,
        )

    # From arguments to JSON -------------------------------------------------------------

    def body_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The JSON-ready body that binds to these arguments, checked as `bind` would.

        An object by parameter names; an array when ``*args`` are given; the value itself for
        ``shape="whole"`` (`MISSING` without arguments). Raises `BadInput` for arguments that
        do not fit and `JsonError` for values that JSON cannot say.
        """
        takes = self._by_position
        named, rest = self._named(args, kwargs)
        body: Any
        if self.shape == "whole":
            body = next(iter(named.values()), MISSING)
        elif rest:
            apart = {k: v for k, v in named.items() if k not in {p.wire_name for p in takes}}
            body = [*(named[p.wire_name] for p in takes if p.wire_name in named), *rest]
            body += [apart] if self.signature.takes_keywords_apart else []
        else:
            body = named
        ready = self.encode_result(body) if body is not MISSING else body
        self.bind(ready)
        return ready

    def _named(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], tuple[Any, ...]]:
        takes = self._by_position
        if len(args) > len(takes) and self._rest is None:
            raise self._too_many(len(args))
        named = {p.wire_name: value for p, value in zip(takes, args, strict=False)}
        wire_names = {p.name: p.wire_name for p in self.signature.fields}
        for name, value in kwargs.items():
            if name not in wire_names and self._extra is None:
                raise unknown_field(name, list(wire_names))
            wire_name = wire_names.get(name, name)
            if wire_name in named:
                raise _given_twice(name, f"$.{name}")
            named[wire_name] = value
        for parameter in takes if len(args) > len(takes) else ():
            if parameter.wire_name not in named:
                raise missing_field(parameter.name, f"$.{parameter.name}")
        return named, tuple(args[len(takes) :])

    def encode_result(self, value: Any) -> Any:
        """``value`` as JSON-ready builtins. Raises `JsonError` for what JSON cannot say."""
        if value is None or value is True or value is False:
            return value
        if type(value) is str and value.isascii():
            return value
        if type(value) is int and -_LARGEST_INT <= value <= _LARGEST_INT:
            return value
        try:
            ready = msgspec.to_builtins(value, str_keys=True, enc_hook=encode_foreign)
        except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
            raise JsonError(str(error)) from error
        codec.encode(ready)
        return ready

    # Schemas ----------------------------------------------------------------------------

    @property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema (2020-12) of the body in its object form (or whole); made when asked."""
        if self._input is None:
            whole = None if self._whole is None else self._whole.hint
            self._input = input_schema(self.signature, whole, only_whole=self.shape == "whole")
        return self._input

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """JSON Schema of what the handler returns, or ``None`` where it does not say."""
        if self._output is None:
            self._output = output_schema(self.signature)
        return self._output


# Compiling ----------------------------------------------------------------------------


def _struct_of(signature: Signature) -> type:
    return msgspec.defstruct(
        "Arguments",
        [_field(p) for p in signature.fields],
        rename={p.name: p.wire_name for p in signature.fields},
        kw_only=True,
        forbid_unknown_fields=True,
        gc=False,
    )


def _field(parameter: Parameter) -> Any:
    if parameter.required:
        return (parameter.name, parameter.hint)
    default = parameter.default
    return (parameter.name, parameter.hint, msgspec.field(default_factory=lambda: default))


def _struct_of_one(parameter: Parameter | None) -> type | None:
    if parameter is None:
        return None
    return msgspec.defstruct("One", [("value", parameter.hint)])


def _decode_one(value: Any, kind: type, path: str) -> Any:
    try:
        one = asdict(convert({"value": value}, kind, dec_hook=decode_foreign, str_keys=True))
    except (msgspec.ValidationError, RecursionError) as error:
        raise refusal(error, kind, {"value": path}) from error
    return one["value"]


def _passed_by_position(signature: Signature) -> tuple[str, ...]:
    """Names to pass by position: only where Python insists, names being the quicker way."""
    if signature.rest is not None or signature.has_positional_only:
        return signature.order
    return ()


def _whole_parameter(signature: Signature, shape: Shape) -> Parameter | None:
    alone = len(signature.fields) == 1 and signature.rest is None and signature.extra is None
    if shape == "whole" and not alone:
        raise ConfigError(
            f"input='whole' needs exactly one parameter, {signature.label} takes "
            f"{len(signature.fields)}",
            remedy="take one parameter (and a Context), or leave input= out",
        )
    if shape == "whole" or (shape == "auto" and alone and accepts_object(signature.fields[0].hint)):
        return signature.fields[0]
    return None


def _first_takes_object(signature: Signature) -> bool:
    """Whether the first positional value may be an object of its own."""
    first = next(iter(signature.positional), signature.rest)
    return first is not None and accepts_object(first.hint)


def _given_twice(name: str, path: str) -> BadInput:
    return BadInput(f"{name!r} is given twice", path=path, remedy="give it once")


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return {str: "str", int: "int", float: "float"}.get(type(value), type(value).__name__)


def _listed(fields: Sequence[Parameter]) -> str:
    return ", ".join(p.wire_name for p in fields[:12])
