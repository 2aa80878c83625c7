"""Bindings: which arguments a body gives, and why others are refused."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest

from penstock.core.binding import Binding
from penstock.core.context import Context
from penstock.core.errors import BadInput, ConfigError
from penstock.core.invocation import MISSING
from penstock.core.signature import Name


class Item(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    count: int = 1


@dataclass
class Place:
    street: str


async def resize(image: str, width: int = 800) -> dict[str, Any]:
    """Make it smaller."""
    return {}


def pack(items: list[Item], notes: dict[str, Item] | None = None) -> None: ...


def refused(fn: Any, body: Any, **options: Any) -> BadInput:
    with pytest.raises(BadInput) as caught:
        Binding.of(fn, **options).bind(body)
    return caught.value


# What binds ---------------------------------------------------------------------------


def test_an_object_binds_by_name_and_defaults_fill_the_rest() -> None:
    assert Binding.of(resize).bind({"image": "a.png"}) == ((), {"image": "a.png", "width": 800})


def test_an_array_binds_by_position() -> None:
    assert Binding.of(resize).bind(["a.png", 3]) == ((), {"image": "a.png", "width": 3})


def test_one_object_in_an_array_binds_by_name_when_no_positional_takes_it() -> None:
    assert Binding.of(resize).bind([{"image": "a.png"}])[1]["image"] == "a.png"


def test_one_object_in_an_array_stays_positional_when_the_first_parameter_takes_objects() -> None:
    def keep(data: dict[str, int], name: str = "") -> None: ...

    assert Binding.of(keep).bind([{"name": 1}])[1] == {"data": {"name": 1}, "name": ""}


def test_one_object_in_an_array_fills_unannotated_parameters_it_names() -> None:
    def send(to, subject=""): ...  # type: ignore[no-untyped-def]

    assert Binding.of(send).bind([{"to": "ann"}])[1] == {"to": "ann", "subject": ""}
    assert Binding.of(send).bind([{"x": 1}])[1] == {"to": {"x": 1}, "subject": ""}


def test_a_last_object_gives_what_can_be_given_by_name_only() -> None:
    def send(to: str, *, urgent: bool = False) -> None: ...

    assert Binding.of(send).bind(["ann", {"urgent": True}])[1] == {"to": "ann", "urgent": True}


@pytest.mark.parametrize("body", [None, MISSING, {}, []])
def test_nothing_binds_to_a_handler_without_arguments(body: Any) -> None:
    def tick() -> None: ...

    assert Binding.of(tick).bind(body) == ((), {})


@pytest.mark.parametrize("body", [0, False, "", 1, "x"])
def test_a_plain_value_is_not_nothing(body: Any) -> None:
    def tick() -> None: ...

    assert refused(tick, body).remedy == "send nothing"


def test_a_plain_value_binds_to_the_only_parameter() -> None:
    def wait(seconds: int) -> None: ...

    assert Binding.of(wait).bind(3)[1] == {"seconds": 3}


def test_star_arguments_take_the_rest_of_an_array() -> None:
    def add(first: int, *others: int, **labels: str) -> None: ...

    args, kwargs = Binding.of(add).bind([1, 2, 3, {"unit": "m"}])

    assert (args, kwargs) == ((1, 2, 3), {"unit": "m"})


def test_keyword_arguments_take_members_nobody_declared() -> None:
    def tag(name: str, **labels: int) -> None: ...

    assert Binding.of(tag).bind({"name": "a", "x": 1})[1] == {"name": "a", "x": 1}


def test_positional_only_parameters_are_passed_by_position() -> None:
    def move(x: int, /, y: int, *, z: int = 0) -> None: ...

    assert Binding.of(move).bind({"x": 1, "y": 2}) == ((1, 2), {"z": 0})


def test_a_default_is_the_very_object_the_signature_holds() -> None:
    shared: list[int] = [1]

    def grow(into: list[int] = shared) -> None: ...

    assert Binding.of(grow).bind(None)[1]["into"] is shared


def test_a_default_of_none_lets_null_in() -> None:
    def find(name: str = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013 - people do

    assert Binding.of(find).bind({"name": None})[1] == {"name": None}


def test_a_parameter_may_carry_another_name_in_json() -> None:
    def wait(delay_ms: Annotated[int, Name("delayMs")], note: str = "") -> None: ...

    binding = Binding.of(wait)

    assert binding.bind({"delayMs": 5})[1] == {"delay_ms": 5, "note": ""}
    assert binding.body_of((), {"delay_ms": 5}) == {"delayMs": 5}
    assert refused(wait, {"delayMs": "5", "note": ""}).path == "$.delayMs"


# The whole payload --------------------------------------------------------------------


def test_a_single_struct_parameter_takes_the_payload_whole() -> None:
    def store(item: Item) -> None: ...

    assert Binding.of(store).bind({"name": "a"})[1] == {"item": Item("a")}


def test_a_payload_whose_only_member_is_the_parameter_binds_by_name() -> None:
    def store(item: Item) -> None: ...

    assert Binding.of(store).bind({"item": {"name": "a"}})[1] == {"item": Item("a")}


@pytest.mark.parametrize("hint", [Item, Place, dict, dict[str, Any], Any])
def test_every_object_type_may_take_the_payload_whole(hint: Any) -> None:
    def store(it: Any) -> None: ...

    store.__annotations__["it"] = hint
    body = {"street": "s"} if hint is Place else {"name": "n"}

    assert Binding.of(store).bind(body)[1] == {"it": msgspec.convert(body, hint)}


def test_fields_never_takes_whole_and_whole_always_does() -> None:
    def store(item: dict[str, Any]) -> None: ...

    assert refused(store, {"name": "a"}, shape="fields").path == "$.name"
    whole = Binding.of(store, shape="whole")
    assert whole.bind({"item": {"b": 1}})[1] == {"item": {"item": {"b": 1}}}


def test_whole_takes_arrays_and_unwraps_one_where_no_array_fits() -> None:
    def total(numbers: list[int]) -> None: ...
    def store(item: Item) -> None: ...

    assert Binding.of(total, shape="whole").bind([1, 2])[1] == {"numbers": [1, 2]}
    assert Binding.of(store, shape="whole").bind([{"name": "a"}])[1] == {"item": Item("a")}


def test_an_empty_object_leaves_a_default_alone() -> None:
    def store(item: dict[str, int] | None = None) -> None: ...

    assert Binding.of(store).bind({})[1] == {"item": None}


def test_whole_with_two_parameters_is_refused_at_declaration() -> None:
    with pytest.raises(ConfigError, match="exactly one parameter"):
        Binding.of(resize, shape="whole")


# What is refused ----------------------------------------------------------------------


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    error = refused(resize, {"image": "a", "widht": 3})

    assert (error.path, error.remedy) == ("$.widht", "did you mean 'width'?")


def test_a_missing_field_says_which() -> None:
    error = refused(resize, {"width": 3})

    assert (error.path, error.remedy) == ("$.image", "add 'image'")
    assert "'image'" in error.message


def test_text_is_never_taken_for_a_number() -> None:
    error = refused(resize, {"image": "a", "width": "3"})

    assert error.path == "$.width"
    assert "Expected `int`, got `str`" in error.message


def test_a_wrong_item_of_an_array_is_named_by_position() -> None:
    assert refused(resize, ["a", "b"]).path == "$[1]"
    assert refused(resize, []).path == "$[0]"
    assert refused(resize, ["a", 1, 2]).path == "$[2]"


def test_the_path_leads_through_arrays_and_structs() -> None:
    error = refused(pack, {"items": [{"name": "a"}, {"nmae": "b"}]})

    assert error.path == "$.items[1].nmae"
    assert error.remedy == "did you mean 'name'?"
    assert refused(pack, {"items": [{"name": 1}]}).path == "$.items[0].name"
    assert refused(pack, [[{"count": 1}]]).path == "$[0][0].name"


def test_the_path_of_a_whole_payload_starts_at_its_root() -> None:
    def store(item: Item) -> None: ...

    assert refused(store, {"name": 1}).path == "$.name"
    assert refused(store, {"nam": "a"}).remedy == "did you mean 'name'?"


def test_star_arguments_are_checked_where_they_stand() -> None:
    def add(first: int, *others: int, **labels: int) -> None: ...

    assert refused(add, [1, 2, "x"]).path == "$[2]"
    assert refused(add, [1, 2, {"unit": "m"}]).path == "$[2].unit"
    assert refused(add, {"first": 1, "unit": "m"}).path == "$.unit"


def test_constraints_of_meta_are_kept() -> None:
    def move(x: Annotated[int, msgspec.Meta(ge=0)]) -> None: ...

    error = refused(move, {"x": -1})

    assert error.path == "$.x"
    assert ">= 0" in error.message


def test_a_value_given_by_position_and_by_name_is_refused() -> None:
    def send(to: str, *rest: str, urgent: bool = False) -> None: ...

    assert refused(send, ["ann", {"to": "bob"}]).path == "$[1].to"


def test_keyword_arguments_cannot_pass_for_the_context_or_a_renamed_parameter() -> None:
    def tag(ctx: Context, delay_ms: Annotated[int, Name("delayMs")], **more: Any) -> None: ...

    assert refused(tag, {"delayMs": 1, "ctx": 2}).path == "$.ctx"
    assert refused(tag, {"delayMs": 1, "delay_ms": 2}).remedy == "did you mean 'delayMs'?"


def test_several_parameters_need_an_object() -> None:
    error = refused(resize, "a.png")

    assert error.message == "expected an object, got str"
    assert "image, width" in error.remedy


def test_an_array_for_one_list_parameter_names_the_way_out() -> None:
    def total(numbers: list[int]) -> None: ...

    assert "input='whole'" in refused(total, [1, 2]).remedy


def test_a_message_never_grows_with_the_input() -> None:
    error = refused(resize, {"x" * 100_000: 1, "image": "a"})

    assert len(str(error)) < 1000


# What can be called -------------------------------------------------------------------


def test_methods_partials_and_callables_bind_what_they_still_take() -> None:
    class Shop:
        async def sell(self, item: str) -> None: ...
        async def __call__(self, item: str) -> None: ...

    for fn in (Shop().sell, Shop(), functools.partial(resize, width=3)):
        assert Binding.of(fn).is_async
    assert Binding.of(Shop().sell).bind({"item": "a"}) == ((), {"item": "a"})
    assert Binding.of(Shop()).bind({"item": "a"}) == ((), {"item": "a"})
    assert Binding.of(functools.partial(resize, "a")).bind([3]) == ((), {"width": 3})


def test_a_generator_is_refused_at_declaration() -> None:
    async def stream() -> Any:
        yield 1

    with pytest.raises(ConfigError, match="generator"):
        Binding.of(stream)
