"""The OmniQ suite runs: every contender of ours, on a handful of jobs, with every figure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import omniq
from bench.kit.model import Scenario
from bench.kit.session import hold

DAILY = ("publish", "consume")


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(one, id=one.name, marks=() if one.name in DAILY else pytest.mark.slow)
        for one in omniq.SCENARIOS
    ],
)
def test_our_contenders_measure_what_their_goals_compare(scenario: Scenario) -> None:
    ours = tuple(
        replace(one, options={name: min(value, 100) for name, value in one.options.items()})
        for one in scenario.contenders
        if not one.packages and "foreign" not in one.options
    )
    options = {**scenario.options, "idle_s": 1}
    small = replace(scenario, quick=5, contenders=ours, options=options)

    results = hold(small, quick=True, rounds=1)

    assert results.faults == {}
    for one in ours:
        [figures] = results.rounds[one.name]
        assert figures is not None and figures["rate"] > 0
        for goal in scenario.goals:
            assert goal.of != one.name or goal.metric in figures
