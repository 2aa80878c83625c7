"""Unique jobs: which are the same, and what happens to the second."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from penstock.protocols.ojs.fields import Fields, object_of
from penstock.protocols.ojs.names import STATES
from penstock.protocols.ojs.refusal import Refused
from penstock.protocols.ojs.unique import (
    DEFAULT_STATES,
    Fresh,
    Holder,
    Ignore,
    Reject,
    Replace,
    UniquePolicy,
    canonical,
    decide,
    parse_unique,
    unique_key,
)

from .making import NOW, later


def policy(**given: Any) -> UniquePolicy:
    return parse_unique(Fields(object_of(msgspec.json.encode(given)), "options.unique"))


def key(chosen: UniquePolicy, *args: Any, meta: Any = None, **more: Any) -> str:
    facts = {"job_type": "mail", "queue": "q", **more}
    raw_args, raw_meta = msgspec.json.encode(args), msgspec.json.encode(meta or {})
    return unique_key(chosen, args=Raw(raw_args), meta=Raw(raw_meta), **facts)


def holder(state: str = "available", scheduled_at: str = "") -> Holder:
    return Holder("j1", state, NOW, scheduled_at)


def test_the_type_always_counts_and_the_rest_only_if_chosen() -> None:
    only_type = policy()
    assert key(only_type, 1) == key(only_type, 2, queue="other", meta={"a": 1})
    assert key(only_type, 1) != key(only_type, 1, job_type="sms")
    everything = policy(keys=["args", "queue", "meta"], meta_keys=["a"])
    base = key(everything, 1, meta={"a": 1})
    assert base == key(everything, 1, meta={"a": 1, "b": 2})
    assert base != key(everything, 2, meta={"a": 1})
    assert base != key(everything, 1, meta={"a": 2})
    assert base != key(everything, 1, meta={"a": 1}, queue="r")


def test_tenants_do_not_meet() -> None:
    assert key(policy(), tenant="a") != key(policy(), tenant="b")


def test_numbers_that_are_equal_in_json_are_equal_here() -> None:
    by_args = policy(keys=["type", "args"])
    assert key(by_args, 1) == key(by_args, 1.0)
    assert key(by_args, {"a": 1, "b": 2}) == key(by_args, {"b": 2, "a": 1})
    assert key(by_args, "\u00e9") == key(by_args, "e\u0301")


def test_chosen_arguments_count_alone_and_must_be_there() -> None:
    chosen = policy(keys=["args"], args_keys=["id"])
    assert key(chosen, {"id": 1, "x": 2}) == key(chosen, {"id": 1, "x": 3})
    assert key(chosen, {"id": 1}) != key(chosen, {"id": 2})
    with pytest.raises(Refused):
        key(chosen, {"x": 1})


def test_the_older_spelling_lists_dimensions_or_arguments() -> None:
    assert policy(key=["type", "queue"]).keys == ("type", "queue")
    assert policy(key=["user_id"]).args_keys == ("user_id",)


@pytest.mark.parametrize(
    "given_",
    [{"keys": ["colour"]}, {"keys": ["meta"]}, {"args_keys": ["a"]}, {"states": ["asleep"]},
     {"period": "soon"}, {"period": "PT0S"}, {"on_conflict": "fight"}, {"keys": "type"}],
    ids=str,
)  # fmt: skip
def test_a_bad_policy_is_refused(given_: dict[str, Any]) -> None:
    with pytest.raises(Refused) as told:
        policy(**given_)
    assert told.value.refusal.status == 400


@pytest.mark.parametrize("state", STATES)
def test_only_the_states_of_the_new_request_are_in_the_way(state: str) -> None:
    found = decide(policy(), holder(state), NOW)
    assert isinstance(found, Reject if state in DEFAULT_STATES else Fresh)
    assert isinstance(decide(policy(states=[state]), holder(state), NOW), Reject)


def test_the_period_counts_from_the_existing_jobs_creation() -> None:
    chosen = policy(period="PT10S")
    assert isinstance(decide(chosen, holder(), later(9.9)), Reject)
    assert isinstance(decide(chosen, holder(), later(10)), Fresh)


def test_each_strategy_has_its_answer() -> None:
    assert isinstance(decide(policy(on_conflict="ignore"), holder(), NOW), Ignore)
    assert decide(policy(on_conflict="replace"), holder(), NOW) == Replace(holder())
    keeps = policy(on_conflict="replace_except_schedule")
    waits = holder("scheduled", "2027-01-01T00:00:00Z")
    assert decide(keeps, waits, NOW) == Replace(waits, "2027-01-01T00:00:00Z")
    assert decide(keeps, holder("available", "2027-01-01T00:00:00Z"), NOW) == Replace(
        holder("available", "2027-01-01T00:00:00Z")
    )
    assert isinstance(decide(policy(), None, NOW), Fresh)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e21, "1e+21"), (1e-7, "1e-7"), (0.000001, "0.000001"), (-0.0, "0"), (123.5, "123.5"),
     (1e20, "100000000000000000000"), (1.5e300, "1.5e+300"), (-2.5e-8, "-2.5e-8"),
     (333333333.3333333, "333333333.3333333"), (2**60, "1152921504606846976")],
)  # fmt: skip
def test_numbers_are_written_as_rfc_8785_says(value: float, text: str) -> None:
    assert canonical(value).decode() == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_canonical_number_reads_back_as_itself(value: float) -> None:
    assert float(canonical(value)) == value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@given(json_values)
def test_canonical_json_is_json_and_stable(value: Any) -> None:
    written = canonical(value)
    assert canonical(msgspec.json.decode(written)) == written
