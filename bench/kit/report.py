"""Results as people and scripts read them: a Markdown table, and one line per goal.

RATIO natq.drain.rate_vs_one_at_a_time 17.21 goal >=15 met
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from statistics import median

from bench.kit.model import Goal, Scenario
from bench.kit.session import Results

__all__ = ["about_this_machine", "ratio_lines", "table", "value_of"]

_COLUMNS = {
    "rate": ("per second", "{:,.0f}"),
    "cpu_us": ("client CPU us", "{:.1f}"),
    "server_us": ("server CPU us", "{:.1f}"),
    "p50_ms": ("p50 ms", "{:.3f}"),
    "p99_ms": ("p99 ms", "{:.3f}"),
    "rss_mb": ("memory MB", "{:.1f}"),
}
_ALWAYS = ("rate", "cpu_us", "server_us")


def table(results: Results) -> Iterator[str]:
    """The scenario's figures: the median of its rounds, the spread of the rate behind it."""
    scenario = results.scenario
    count = scenario.quick if results.quick else scenario.count
    yield f"### {scenario.name}: {scenario.title}"
    yield ""
    yield _facts(scenario, count, max(map(len, results.rounds.values()), default=0))
    yield ""
    columns = [*_ALWAYS, *scenario.columns]
    titles = [_COLUMNS.get(column, (column, ""))[0] for column in columns]
    yield "| contender | " + " | ".join([*titles, "rate, lowest to highest"]) + " |"
    yield "|---|" + "--:|" * (len(columns) + 1)
    for contender in scenario.contenders:
        rates = results.values(contender.name, "rate")
        if not rates:
            yield f"| {contender.name} |" + " – |" * (len(columns) + 1)
            continue
        cells = [_cell(results, contender.name, column) for column in columns]
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        yield f"| {contender.name} | " + " | ".join([*cells, spread]) + " |"
    yield ""
    for contender in scenario.contenders:
        if contender.note:
            yield f"- {contender.name}: {contender.note}"
    for name, fault in results.faults.items():
        yield f"- {name} did not run: {fault}"
    if scenario.durability:
        yield f"- durability: {scenario.durability}"


def ratio_lines(results: Results, suite: str) -> Iterator[str]:
    """One line per goal, from what was measured; ``n/a`` where a side is missing."""
    for goal in results.scenario.goals:
        value = value_of(goal, results)
        name = f"{suite}.{results.scenario.name}.{goal.name}"
        if value is None:
            yield f"RATIO {name} n/a goal {goal.bound}"
        else:
            word = "met" if goal.met(value) else "missed"
            yield f"RATIO {name} {value:.4g} goal {goal.bound} {word}"


def value_of(goal: Goal, results: Results) -> float | None:
    """What to compare with the goal's bound: the median over rounds, ratios within a round."""
    ours = results.rounds.get(goal.of, [])
    if goal.against is None:
        values = results.values(goal.of, goal.metric)
    else:
        theirs = results.rounds.get(goal.against, [])
        values = [
            a[goal.metric] / b[goal.metric]
            for a, b in zip(ours, theirs, strict=False)
            if a is not None and b is not None and goal.metric in a and b.get(goal.metric)
        ]
    return median(values) if values else None


def about_this_machine(packages: Iterable[str]) -> str:
    """Where and with what these figures were taken, in one line."""
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    parts = [
        f"{os.cpu_count()} cores",
        f"{platform.system()} {platform.machine()}",
        f"Python {platform.python_version()}",
        *(f"{name} {_version(name)}" for name in packages),
    ]
    return ", ".join(parts) + f"; load average at the start {load}"


def _facts(scenario: Scenario, count: int, rounds: int) -> str:
    shares = {one.name: one.count_of(count) for one in scenario.contenders if one.share != 1.0}
    fewer = "".join(f"; {many:,} by {name}" for name, many in shares.items())
    return f"{count:,} × {scenario.unit} by each contender{fewer}; medians of {rounds} rounds."


def _cell(results: Results, contender: str, column: str) -> str:
    values = results.values(contender, column)
    if not values or math.isnan(median(values)):
        return "–"
    form = _COLUMNS.get(column, ("", "{:.3g}"))[1]
    return form.format(median(values))


def _version(name: str) -> str:
    try:
        return version(name)
    except ImportError:
        return "?"
