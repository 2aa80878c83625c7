"""Bodies: what producers send is checked before it leaves, and binds to the same arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.binding import Binding
from penstock.core.codec import JsonError, decode, encode
from penstock.core.context import Context
from penstock.core.errors import BadInput
from penstock.core.invocation import MISSING


def plain(a: int, b: str = "b", *, c: bool = False) -> None: ...
def with_context(ctx: Context, a: int, b: str = "b", *, c: bool = False) -> None: ...
def positional_only(a: int, b: str = "b", /, *, c: bool = False) -> None: ...
def starred(a: int, b: str, *rest: dict[str, int], c: bool = False) -> None: ...
def only_starred(*rest: dict[str, int] | int) -> None: ...
def everything(a: int, /, b: str, *rest: int | str, c: bool, **more: float) -> None: ...
def single(data: dict[str, Any]) -> None: ...
def single_optional(data: dict[str, Any] | None = None) -> None: ...


SHAPES = [
    plain,
    with_context,
    positional_only,
    starred,
    only_starred,
    everything,
    single,
    single_optional,
]
scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
objects = st.dictionaries(st.text(max_size=5) | st.just("data"), scalars, max_size=3)
counts = st.dictionaries(st.sampled_from(["a", "c", "n"]), st.integers(), max_size=2)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    fn = draw(st.sampled_from(SHAPES))
    if fn in (single, single_optional):
        return fn, (), {"data": draw(objects)} if draw(st.booleans()) or fn is single else {}
    if fn is only_starred:
        return fn, tuple(draw(st.lists(counts | st.integers(), max_size=3))), {}
    args = [draw(st.integers()), draw(st.text(max_size=5))]
    kwargs: dict[str, Any] = {"c": draw(st.booleans())}
    if fn in (plain, with_context) and draw(st.booleans()):
        kwargs["b"] = args.pop()
    if fn is starred:
        args += draw(st.lists(counts, max_size=3))
    if fn is everything:
        args += draw(st.lists(st.integers() | st.text(max_size=5), max_size=3))
        kwargs |= draw(st.dictionaries(st.sampled_from(["x", "y"]), st.floats(-9, 9)))
    return fn, tuple(args), kwargs


@given(calls())
def test_what_a_producer_gives_is_what_the_handler_gets(
    call: tuple[Any, tuple[Any, ...], dict[str, Any]],
) -> None:
    fn, args, kwargs = call
    binding = Binding.of(fn)

    body = decode(encode(binding.body_of(args, kwargs)))
    got_args, got_kwargs = binding.bind(body, context="CTX")

    given_args = ("CTX", *args) if fn is with_context else args
    wanted = inspect.signature(fn).bind(*given_args, **kwargs)
    wanted.apply_defaults()
    got = inspect.signature(fn).bind(*got_args, **got_kwargs)
    got.apply_defaults()
    assert got.arguments == wanted.arguments


def test_a_body_is_an_object_by_name() -> None:
    assert Binding.of(plain).body_of((1, "x"), {}) == {"a": 1, "b": "x"}
    assert Binding.of(with_context).body_of((1,), {"c": True}) == {"a": 1, "c": True}


def test_a_whole_body_is_the_value_itself() -> None:
    whole = Binding.of(single_optional, shape="whole")

    assert whole.body_of(({"x": 1},), {}) == {"x": 1}
    assert whole.body_of((), {}) is MISSING


def test_defaults_are_left_to_the_worker() -> None:
    assert Binding.of(plain).body_of((1,), {}) == {"a": 1}


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        ((), {}, "$.a"),
        (("1",), {}, "$.a"),
        ((1, "b", "c"), {}, "$[2]"),
        ((1,), {"a": 1}, "$.a"),
        ((1,), {"bb": "x"}, "$.bb"),
        ((1,), {"ctx": None}, "$.ctx"),
    ],
)
def test_a_producer_hears_at_once_what_the_handler_would_refuse(
    args: tuple[Any, ...], kwargs: dict[str, Any], path: str
) -> None:
    with pytest.raises(BadInput) as caught:
        Binding.of(with_context).body_of(args, kwargs)

    assert caught.value.path == path
    assert caught.value.remedy


def test_a_value_json_cannot_say_never_leaves() -> None:
    def take(x: float) -> None: ...

    with pytest.raises(JsonError):
        Binding.of(take).body_of((float("nan"),), {})
