"""JSON in and out: what another language could not read is refused, never bent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.codec import JsonError, decode, encode, encode_ordered

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


class Reading(msgspec.Struct):
    value: float
    note: str | None = None


@dataclass
class Series:
    readings: list[Any]


def nested(depth: int, inside: Any) -> Any:
    for _ in range(depth):
        inside = [inside]
    return inside


@given(json_values)
def test_what_is_written_reads_back_the_same(value: Any) -> None:
    assert decode(encode(value)) == value


@given(st.dictionaries(st.text(), st.integers(), max_size=5))
def test_equal_values_give_equal_ordered_bytes(value: dict[str, int]) -> None:
    turned = dict(reversed(value.items()))

    assert encode_ordered(value) == encode_ordered(turned)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "$"),
        ({"a": [1, float("inf")]}, "$.a[1]"),
        (Series([Reading(1), Reading(float("-inf"))]), "$.readings[1].value"),
        ({"a": {"b": Reading(float("nan"))}}, "$.a.b.value"),
        ((None, (float("nan"),)), "$[1][0]"),
    ],
)
def test_a_number_json_does_not_have_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(JsonError, match="is not JSON") as caught:
        encode(value)

    assert f" at {path} " in str(caught.value)


def test_null_is_fine_however_deep() -> None:
    value = nested(900, None)

    assert decode(encode(value)) == value


@pytest.mark.parametrize("depth", [5_000, 100_000])
def test_too_deep_is_an_answer_and_not_a_crash(depth: int) -> None:
    with pytest.raises(JsonError):
        encode(nested(depth, 1))
    with pytest.raises(JsonError):
        decode(b"[" * depth + b"]" * depth)
    with pytest.raises(JsonError):
        decode(b'{"a":' * depth + b"1" + b"}" * depth)


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, {"a": ["\ud800"]}])
def test_lone_surrogates_are_not_utf8(value: Any) -> None:
    with pytest.raises(JsonError):
        encode(value)


@pytest.mark.parametrize(
    "data",
    [
        b"", b" ", b"{", b"[1,]", b"1 2", b"NaN", b"Infinity", b"'a'", b'{"a":1,}', b"// x",
        b'"\xff"', b'{"\xff":1}', b'{"a":"\xc3\x28"}', b'"\\ud800"', b"\xef\xbb\xbf{}", b"01",
        b"1e999", b"1" * 5_000, "\"\ud800\"", b'"\x01"',
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused(data: bytes | str) -> None:
    with pytest.raises(JsonError) as caught:
        decode(data)

    assert str(caught.value)


def test_large_integers_keep_every_digit() -> None:
    for number in (2**53 + 1, 2**63, 2**64 + 1, -(2**70)):
        assert decode(encode(number)) == number


def test_of_members_given_twice_the_last_one_counts() -> None:
    assert decode(b'{"a":1,"a":2}') == {"a": 2}


def test_a_value_that_is_no_data_is_refused() -> None:
    with pytest.raises(JsonError):
        encode({"a": object()})
    with pytest.raises(JsonError):
        encode({(1, 2): 3})
