"""Typed values cross JSON and come back the same, however they nest."""

from __future__ import annotations

import enum
import json
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from penstock.core.binding import Binding
from penstock.core.codec import JsonError, decode, encode
from penstock.core.errors import BadInput


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int
    y: int = 0


class Options(TypedDict):
    size: int
    name: NotRequired[str]


@dataclass
class Box:
    at: datetime
    points: list[Point]


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    tricks: list[str]


class Tree(msgspec.Struct):
    value: int
    below: list[Tree] = []


class Address(pydantic.BaseModel):
    street: str
    post_code: int = pydantic.Field(alias="postCode", gt=0)
    since: datetime | None = None


class Customer(pydantic.BaseModel):
    name: str
    homes: list[Address] = []


NOW = datetime(2027, 3, 28, 1, 30, tzinfo=UTC)

TYPED: list[tuple[Any, Any]] = [
    (NOW, datetime),
    (date(2027, 1, 2), date),
    (time(1, 2), time),
    (timedelta(minutes=5), timedelta),
    (uuid.UUID(int=7), uuid.UUID),
    (Decimal("1.10"), Decimal),
    (b"\x00\xff", bytes),
    (Colour.RED, Colour),
    (Level.HIGH, Level),
    ("a", Literal["a", "b"]),
    (1.5, float),
    (2**70, int),
    (None, int | None),
    ("x", int | str),
    ((1, "a"), tuple[int, str]),
    ((1, 2), tuple[int, ...]),
    ({1, 2}, set[int]),
    (frozenset({NOW}), frozenset[datetime]),
    ({1: "a"}, dict[int, str]),
    ({uuid.UUID(int=7): [Colour.RED]}, dict[uuid.UUID, list[Colour]]),
    (Point(1, 2), Point),
    ({"size": 1}, Options),
    (Box(NOW, [Point(1)]), Box),
    (Cat(9), Cat | Dog),
    ([Dog(["sit"]), Cat(1)], list[Cat | Dog]),
    (Tree(1, [Tree(2)]), Tree),
    (Address(street="s", postCode=1, since=NOW), Address),
    (Customer(name="n", homes=[Address(street="s", postCode=1)]), Customer),
    ({"a": [Customer(name="n")]}, dict[str, list[Customer]]),
    (pydantic.HttpUrl("http://x.invalid/"), pydantic.HttpUrl),
    (None, Customer | None),
]


@pytest.mark.parametrize(("value", "hint"), TYPED, ids=lambda v: str(v)[:40])
def test_a_typed_value_comes_back_the_same(value: Any, hint: Any) -> None:
    def take(it: Any, n: int = 0) -> Any: ...

    take.__annotations__["it"] = hint
    binding = Binding.of(take)

    body = decode(encode(binding.body_of((value,), {})))

    assert binding.bind(body) == ((), {"it": value, "n": 0})
    assert type(binding.bind(body)[1]["it"]) is type(value)


@pytest.mark.parametrize(("value", "hint"), TYPED, ids=lambda v: str(v)[:40])
def test_a_typed_value_is_a_result_json_can_say(value: Any, hint: Any) -> None:
    def give() -> Any: ...

    ready = Binding.of(give).encode_result(value)

    assert json.loads(json.dumps(ready)) == decode(encode(ready))  # builtins and nothing else


def refused(hint: Any, value: Any) -> BadInput:
    def take(it: Any, n: int = 0) -> None: ...

    take.__annotations__["it"] = hint
    with pytest.raises(BadInput) as caught:
        Binding.of(take).bind({"it": value})
    return caught.value


def test_pydantic_names_the_place_of_its_fault() -> None:
    error = refused(list[Customer], [{"name": "n", "homes": [{"street": "s", "postCode": 0}]}])

    assert error.path == "$.it[0].homes[0].postCode"
    assert error.message == "Input should be greater than 0"
    assert "pydantic.dev" not in str(error)


def test_a_pydantic_model_takes_a_payload_whole() -> None:
    def store(customer: Customer) -> None: ...

    binding = Binding.of(store)

    assert binding.bind({"name": "n"})[1] == {"customer": Customer(name="n")}
    with pytest.raises(BadInput) as caught:
        binding.bind({"nam": "n"})
    assert caught.value.path == "$.name"


def test_a_value_outside_of_an_enum_is_refused() -> None:
    assert "Invalid enum value" in refused(Colour, "blue").message


def test_text_that_is_no_instant_is_refused() -> None:
    error = refused(Box, {"at": "yesterday", "points": []})

    assert error.path == "$.it.at"


@pytest.mark.parametrize("value", [None, True, 7, "text", "schön", {"a": [1.5, None]}, [], 2**70])
def test_plain_results_pass_unchanged(value: Any) -> None:
    def give() -> Any: ...

    assert Binding.of(give).encode_result(value) == value


def test_an_enum_result_is_its_value() -> None:
    class Word(enum.StrEnum):
        YES = "yes"

    class OldWord(str, enum.Enum):  # noqa: UP042 - the older spelling prints differently
        YES = "yes"

    def give() -> Any: ...

    for word in (Word.YES, OldWord.YES):
        ready = Binding.of(give).encode_result(word)
        assert (ready, type(ready)) == ("yes", str)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        {"a": [1, float("inf")]},
        Box(NOW, [Point(float("nan"))]),  # type: ignore[arg-type]
        "\ud800",
        {"\ud800": 1},
        object(),
        {"a": object()},
        {(1, 2): 3},
        complex(1, 2),
        (n for n in range(3)),
    ],
)
def test_a_result_json_cannot_say_is_refused(value: Any) -> None:
    def give() -> Any: ...

    with pytest.raises(JsonError):
        Binding.of(give).encode_result(value)


def test_a_result_that_holds_itself_is_refused() -> None:
    def give() -> Any: ...

    ring: list[Any] = []
    ring.append(ring)

    with pytest.raises(JsonError):
        Binding.of(give).encode_result(ring)
