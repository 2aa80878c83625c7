"""Schemas: what a signature says in JSON Schema, and schemas that users hand in."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from penstock.core.binding import Binding
from penstock.core.context import Context
from penstock.core.errors import BadInput, ConfigError
from penstock.core.outcome import Retry, Snooze
from penstock.core.schema import Validator


class Item(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(description="as printed", max_length=9)]
    parts: list[Item] = []


class Address(pydantic.BaseModel):
    street: str


class Customer(pydantic.BaseModel):
    homes: list[Address]


async def ship(
    ctx: Context, item: Item, to: Customer, at: datetime | None = None, *, urgent: bool = False
) -> dict[str, Customer]:
    """Send it off.

    More about it.
    """
    return {}


def test_the_input_schema_says_what_may_be_sent() -> None:
    schema = Binding.of(ship).input_schema

    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["description"] == "Send it off."
    assert schema["required"] == ["item", "to"]
    assert list(schema["properties"]) == ["item", "to", "at", "urgent"]
    assert schema["properties"]["urgent"] == {"type": "boolean", "default": False}
    assert schema["additionalProperties"] is False
    assert set(schema["$defs"]) >= {"Item", "Address"}


BODIES: list[Any] = [
    {"item": {"name": "a"}, "to": {"homes": [{"street": "s"}]}},
    {"item": {"name": "a", "parts": [{"name": "b"}]}, "to": {"homes": []}, "at": None},
    {"item": {"name": "a" * 10}, "to": {"homes": []}},
    {"item": {"name": "a", "parts": [{"name": 1}]}, "to": {"homes": []}},
    {"item": {"name": "a"}, "to": {"homes": [{"streets": "s"}]}},
    {"item": {"name": "a"}},
    {"item": {"name": "a"}, "to": {"homes": []}, "extra": 1},
    {"item": {"name": "a"}, "to": {"homes": []}, "urgent": 1},
    {"item": {"name": "a"}, "to": {"homes": []}, "at": "2027-01-02T03:04:05Z"},
]


@pytest.mark.parametrize("body", BODIES)
def test_schema_and_binding_agree(body: Any) -> None:
    binding = Binding.of(ship)
    try:
        binding.bind(body)
        binds = True
    except BadInput:
        binds = False

    assert Validator.of(binding.input_schema).accepts(body) is binds


def test_the_schemas_of_pydantic_are_part_of_the_one_document() -> None:
    schema = Binding.of(ship).output_schema

    assert schema is not None
    assert Validator.of(schema).accepts({"a": {"homes": [{"street": "s"}]}})
    assert not Validator.of(schema).accepts({"a": {"homes": [{}]}})


def test_a_whole_payload_is_said_both_ways() -> None:
    def store(item: Item) -> None: ...

    auto = Validator.of(Binding.of(store).input_schema)
    whole = Validator.of(Binding.of(store, shape="whole").input_schema)

    assert auto.accepts({"name": "a"})
    assert auto.accepts({"item": {"name": "a"}})
    assert not auto.accepts({"item": {}})
    assert whole.accepts({"name": "a"})
    assert not whole.accepts({"item": {"name": "a"}})


def test_keyword_arguments_open_the_schema() -> None:
    def tag(name: str, **labels: int) -> None: ...

    schema = Validator.of(Binding.of(tag).input_schema)

    assert schema.accepts({"name": "a", "x": 1})
    assert not schema.accepts({"name": "a", "x": "y"})


def test_a_handler_that_says_nothing_has_no_output_schema() -> None:
    def quiet(): ...  # type: ignore[no-untyped-def]

    assert Binding.of(quiet).output_schema is None


def test_verbs_are_no_results() -> None:
    def maybe() -> int | Retry | Snooze: ...
    def never() -> Retry: ...

    schema = Binding.of(maybe).output_schema

    assert schema is not None
    assert schema["type"] == "integer"
    assert Binding.of(never).output_schema is None


# Schemas handed in --------------------------------------------------------------------


def test_problems_name_path_and_fault() -> None:
    schema = Validator.of('{"properties": {"a": {"items": {"type": "integer"}}}}')

    assert schema.problems({"a": [1, 2]}) == []
    assert schema.problems({"a": [1, "x"]}) == [("$.a[1]", '"x" is not of type "integer"')]


def test_problems_are_bounded() -> None:
    schema = Validator.of({"items": {"type": "integer"}})

    problems = schema.problems(["x" * 10_000] * 1_000)

    assert len(problems) == 20
    assert all(len(message) <= 300 for _, message in problems)


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        "[]",
        {"type": "nope"},
        {"pattern": "("},
        {"$ref": "http://127.0.0.1:9/x"},
        {"$ref": "#/x"},
    ],
)
def test_an_invalid_schema_is_refused_before_any_value(schema: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Validator.of(schema)

    assert caught.value.code == "schema.invalid"


def test_a_pattern_cannot_hang_a_worker() -> None:
    schema = Validator.of({"pattern": r"^(?=(a+)+$)(a|aa)+\1$"})

    assert not schema.accepts("a" * 5_000 + "b")


def test_a_missing_extra_is_named() -> None:
    program = """
import sys
sys.modules["jsonschema_rs"] = None
from penstock.core.schema import Validator
from penstock.core.errors import ConfigError
try:
    Validator.of({})
except ConfigError as error:
    print(error.code, error.remedy)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )

    assert ran.stdout.strip() == "extra.missing pip install 'penstock[schema]'"
