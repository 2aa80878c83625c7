"""The bench measures what it says: figures come from contenders, ratios from figures."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import natq, parts
from bench.kit.model import Contender, Goal, Scenario
from bench.kit.report import ratio_lines, table, value_of
from bench.kit.run import percentile
from bench.kit.session import Results, hold

ROOT = Path(__file__).resolve().parents[2]
HERE = "tests.bench.contenders"

CENTS = Scenario(
    name="cents",
    title="know what it cost",
    count=100,
    quick=10,
    place="none",
    options={"price": 1},
    contenders=(
        Contender(name="two", program=f"{HERE}:two_cents"),
        Contender(name="four", program=f"{HERE}:four_cents", share=0.5, options={"price": 3}),
        Contender(name="broken", program=f"{HERE}:broken"),
        Contender(name="silent", program=f"{HERE}:silent"),
        Contender(name="absent", program=f"{HERE}:two_cents", packages=("penstock-no-such-thing",)),
    ),
    goals=(
        Goal("cheap", "cost", "two", "four", at_most=0.2),
        Goal("dear", "cost", "two", at_least=5),
        Goal("unknown", "cost", "two", "broken", at_most=1),
    ),
)


@pytest.fixture(scope="module")
def cents() -> Results:
    return hold(CENTS, quick=True, rounds=2)


def test_goals_are_computed_from_what_the_contenders_measured(cents: Results) -> None:
    assert list(ratio_lines(cents, "demo")) == [
        "RATIO demo.cents.cheap 0.1667 goal <=0.2 met",
        "RATIO demo.cents.dear 2 goal >=5 missed",
        "RATIO demo.cents.unknown n/a goal <=1",
    ]


def test_every_contender_has_one_turn_per_round_with_its_share_of_the_work(cents: Results) -> None:
    assert cents.values("two", "count") == [10, 10]
    assert cents.values("four", "count") == [10, 10]  # half of ten, and it did twice that
    assert all(rate > 0 for rate in cents.values("two", "rate"))
    assert cents.values("two", "p50_ms") == [2.0, 2.0]


def test_a_contender_that_cannot_run_is_named_with_the_reason(cents: Results) -> None:
    assert set(cents.faults) == {"broken", "silent", "absent"}
    assert "out of ink" in cents.faults["broken"]
    shown = "\n".join(table(cents))
    assert "- broken did not run" in shown
    assert "| absent |" in shown


def test_a_ratio_compares_within_a_round_and_takes_the_median() -> None:
    results = Results(CENTS, quick=True)
    results.rounds["two"] = [{"cost": 1.0}, {"cost": 10.0}, None, {"cost": 3.0}]
    results.rounds["four"] = [{"cost": 2.0}, {"cost": 100.0}, {"cost": 1.0}, {"cost": 4.0}]

    assert value_of(CENTS.goals[0], results) == 0.5


def test_a_goal_without_one_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        Goal("vague", "rate", "two")


@pytest.mark.parametrize(("part", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100)])
def test_percentiles_are_by_nearest_rank(part: float, expected: int) -> None:
    assert percentile([float(n) for n in range(1, 101)], part) == expected


@pytest.mark.parametrize("scenario", natq.SCENARIOS, ids=lambda one: str(one.name))
def test_every_natq_contender_of_ours_does_its_work(scenario: Scenario) -> None:
    ours = tuple(one for one in scenario.contenders if not one.packages)

    results = hold(replace(scenario, quick=20, contenders=ours), quick=True, rounds=1)

    assert not results.faults
    assert all(results.values(one.name, "rate") for one in ours)
    assert all(" n/a " not in line for line in ratio_lines(results, "natq"))


def test_the_command_lists_suites_and_knows_their_names() -> None:
    def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bench", *arguments]
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )

    assert "drain" in bench().stdout
    wrong = bench("natk")
    assert wrong.returncode == 2
    assert "natq" in wrong.stderr


def test_the_parts_of_a_job_are_each_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parts, "WINDOWS", 1)
    monkeypatch.setattr(parts, "TIMES", 20)

    parts.main()

    shown = [line.split("|")[1:3] for line in capsys.readouterr().out.splitlines()]
    assert "an ack" in {part.strip() for part, _ in shown}
    assert all(float(cost) > 0 for _, cost in shown)
