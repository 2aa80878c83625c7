"""Signatures: contexts found wherever they stand, and mistakes told by name."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pydantic
import pytest

import penstock.core.context as context_module
from penstock.core.binding import Binding
from penstock.core.context import Context
from penstock.core.errors import ConfigError
from penstock.core.signature import Name

if TYPE_CHECKING:
    from somewhere import Unknown


class Untagged(msgspec.Struct):
    x: int


class Other(msgspec.Struct):
    y: int


def test_a_context_is_found_in_any_position_and_spelling() -> None:
    def first(ctx: Context, day: str) -> None: ...
    def last(day: str, ctx: Context | None = None) -> None: ...
    def named(day: str, *, c: Annotated[Context, "why not"]) -> None: ...
    def dotted(day: str, it: context_module.Context) -> None: ...

    for fn, name in ((first, "ctx"), (last, "ctx"), (named, "c"), (dotted, "it")):
        binding = Binding.of(fn)
        assert binding.context_parameter == name
        assert binding.bind({"day": "mon"}, context="CTX") == ((), {"day": "mon", name: "CTX"})
        assert binding.bind(["mon"], context="CTX") == ((), {"day": "mon", name: "CTX"})


def test_a_context_keeps_its_place_among_positional_arguments() -> None:
    def move(x: int, ctx: Context, /, y: int, *more: int) -> None: ...

    assert Binding.of(move).bind([1, 2, 3], context="CTX") == ((1, "CTX", 2, 3), {})


def test_a_context_imported_for_type_checkers_only_is_known() -> None:
    made: dict[str, Any] = {}
    exec("def report(ctx: 'Context', day: 'str') -> None: ...", made)

    assert Binding.of(made["report"]).context_parameter == "ctx"


def test_two_contexts_are_refused() -> None:
    def both(a: Context, b: Context) -> None: ...

    with pytest.raises(ConfigError, match="twice"):
        Binding.of(both)


def test_a_class_of_an_enclosing_function_is_known_when_the_handler_uses_it() -> None:
    class Local(msgspec.Struct):
        x: int

    def make(it: Local) -> Any:
        return Local(it.x)

    assert Binding.of(make).bind({"x": 1})[1] == {"it": Local(1)}


def refusal_of(fn: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        Binding.of(fn)
    assert caught.value.remedy
    return caught.value


def test_an_annotation_that_cannot_be_resolved_names_its_parameter() -> None:
    def find(a: int, thing: Unknown) -> None: ...

    error = refusal_of(find)

    assert "'thing'" in error.message
    assert "module level" in error.remedy


@pytest.mark.parametrize(
    "hint", [threading.Lock, complex, list[complex], Untagged | Other, bytes | str]
)
def test_a_type_that_json_cannot_give_names_its_parameter(hint: Any) -> None:
    def take(it: Any) -> None: ...

    take.__annotations__["it"] = hint

    assert "'it'" in refusal_of(take).message


def test_a_pydantic_field_on_a_parameter_is_refused_rather_than_ignored() -> None:
    def take(it: Annotated[int, pydantic.Field(ge=1)]) -> None: ...

    assert "msgspec.Meta" in refusal_of(take).remedy


def test_two_parameters_of_one_name_are_refused() -> None:
    def take(a: int, b: Annotated[int, Name("a")]) -> None: ...

    assert "both called 'a'" in refusal_of(take).message


def test_a_name_must_be_a_plain_member_name() -> None:
    with pytest.raises(ConfigError, match="plain member name"):
        Name("a.b")


def test_a_return_annotation_that_cannot_be_resolved_costs_only_the_schema() -> None:
    def find() -> Unknown: ...

    assert Binding.of(find).output_schema is None
