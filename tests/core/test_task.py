"""Tasks and the registry: every mistake is told at declaration."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.core.errors import ConfigError, UnknownName
from penstock.core.invocation import PROTOCOLS
from penstock.core.policy import Backoff, RetryPolicy
from penstock.core.registry import Registry
from penstock.core.task import RunsIn, check_name, length_of_time


async def resize(image: str) -> None:
    """Make it smaller.

    And keep the ratio.
    """


def report(day: str) -> None: ...


# Names --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resize", "a", "resize_2", "pack-all"])
def test_a_name_every_wire_can_carry_is_taken(name: str) -> None:
    check_name(name, {})


@pytest.mark.parametrize(
    "name", ["", "Resize", "2x", "a.b", "a b", "a*", "a>", "ä", "-a", "_a", "a\n", "<lambda>"]
)
def test_a_name_some_wire_cannot_carry_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_name(name, {})

    assert caught.value.code == "task.name"


def test_a_misspelled_protocol_suggests_the_right_one() -> None:
    with pytest.raises(UnknownName) as caught:
        check_name("resize", {"dagnat": "x"})

    assert "'dagnats'" in caught.value.remedy


# Lengths of time ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("250ms", 0.25), ("30s", 30), ("1h 30m", 5400), ("1h30m", 5400), ("1.5 m", 90), ("2d", 172800),
     (3, 3), (0.5, 0.5), (timedelta(minutes=1), 60), (0, 0)],
)  # fmt: skip
def test_a_length_of_time_as_people_write_it(said: Any, seconds: float) -> None:
    assert length_of_time(said) == timedelta(seconds=seconds)


def test_no_length_is_no_limit() -> None:
    assert length_of_time(None) is None


@pytest.mark.parametrize(
    "said",
    ["", "30", "s", "30 sec", "-5s", "5s ago", -1, timedelta(seconds=-1), float("nan"),
     float("inf"), "9" * 20 + "d"],
)  # fmt: skip
def test_what_is_no_length_of_time_is_refused(said: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        length_of_time(said)

    assert caught.value.remedy


# The registry -------------------------------------------------------------------------


def test_a_task_takes_its_name_and_summary_from_its_function() -> None:
    task = Registry().add(resize, retries=5, timeout="30s", queue="images")

    assert (task.name, task.summary, task.queue) == ("resize", "Make it smaller.", "images")
    assert task.retry.max_attempts == 6
    assert task.timeout == timedelta(seconds=30)


def test_async_runs_on_the_loop_and_sync_in_threads_or_processes() -> None:
    registry = Registry()

    assert registry.add(resize).runs_in is RunsIn.LOOP
    assert registry.add(report).runs_in is RunsIn.THREAD
    assert registry.add(report, name="heavy", cpu=True).runs_in is RunsIn.PROCESS


def test_a_task_is_found_by_name_and_by_function() -> None:
    registry = Registry()
    task = registry.add(resize)

    assert registry.get("resize") is registry.of(resize) is registry.of("resize") is task
    assert "resize" in registry
    assert len(registry) == 1


def test_a_task_is_found_by_its_bound_method() -> None:
    class Shop:
        def sell(self, item: str) -> None: ...

    shop, registry = Shop(), Registry()
    task = registry.add(shop.sell)

    assert registry.of(shop.sell) is task


def test_an_unknown_task_suggests_the_nearest_one() -> None:
    registry = Registry()
    registry.add(resize)

    with pytest.raises(UnknownName, match="resise") as caught:
        registry.get("resise")
    assert "'resize'" in caught.value.remedy
    with pytest.raises(UnknownName):
        registry.of(report)


def test_two_tasks_cannot_share_a_name() -> None:
    registry = Registry()
    registry.add(resize)

    with pytest.raises(ConfigError) as caught:
        registry.add(report, name="resize")
    assert caught.value.code == "task.duplicate"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"ojs": "image.resize"}, {"ojs": "image.resize"}),
        ({"ojs": "report"}, {}),
        ({}, {"ojs": "resize"}),
    ],
)
def test_two_tasks_cannot_share_a_name_on_any_wire(
    first: dict[str, str], second: dict[str, str]
) -> None:
    registry = Registry()
    registry.add(resize, names=first)

    with pytest.raises(ConfigError, match="on ojs") as caught:
        registry.add(report, names=second)
    assert caught.value.code == "task.duplicate"
    assert len(registry) == 1


def test_a_task_is_served_under_its_name_of_each_wire() -> None:
    registry = Registry()
    task = registry.add(resize, names={"ojs": "image.resize"})

    served = {protocol: list(registry.served_on(protocol)) for protocol in PROTOCOLS}

    assert served.pop("ojs") == ["image.resize"]
    assert set(map(tuple, served.values())) == {("resize",)}
    assert task.name_on("ojs") == "image.resize"


@pytest.mark.parametrize(
    "options",
    [
        {"retries": 1, "retry": RetryPolicy()},
        {"backoff": Backoff(), "retry": RetryPolicy()},
        {"retries": -1},
        {"retries": "3"},
        {"retries": True},
        {"concurrency": "many"},
        {"concurrency": 0},
        {"timeout": "soon"},
        {"cpu": True},
        {"name": "No Name"},
        {"names": {"smtp": "x"}},
    ],
)
def test_options_that_contradict_are_refused_and_nothing_is_declared(
    options: dict[str, Any],
) -> None:
    registry = Registry()

    with pytest.raises((ConfigError, UnknownName)) as caught:
        registry.add(resize, **options)

    assert caught.value.remedy
    assert len(registry) == 0
