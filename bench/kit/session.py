"""A session: contenders take turns, round after round, each alone with a server of its own.

Interleaving is the point. Whatever else the machine does falls on all contenders alike, and
the order moves by one each round, so that nobody always comes after the same other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.kit import places
from bench.kit.model import Contender, Scenario
from bench.kit.run import MARK
from bench.kit.venvs import Unavailable, python_for

__all__ = ["Failed", "Figures", "Results", "hold"]

ROOT = Path(__file__).resolve().parents[2]
Figures = dict[str, float]


class Failed(Exception):
    """A contender ended without figures; the message holds its last words."""


@dataclass
class Results:
    """What each contender measured, one entry per round (``None`` where it failed)."""

    scenario: Scenario
    quick: bool
    rounds: dict[str, list[Figures | None]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    def values(self, contender: str, metric: str) -> list[float]:
        """The figures of one contender by round, those it has."""
        rounds = self.rounds.get(contender, [])
        return [one[metric] for one in rounds if one is not None and metric in one]


def hold(
    scenario: Scenario,
    *,
    quick: bool = False,
    rounds: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Results:
    """Run all contenders of ``scenario`` in turns. A peer that fails is left out, by name."""
    results = Results(scenario, quick)
    line_up = _available(scenario, results)
    results.rounds = {one.name: [] for one, _ in line_up}
    many = min(rounds or (2 if quick else scenario.rounds), scenario.rounds)
    for number in range(many):
        turn = number % max(len(line_up), 1)
        for contender, python in line_up[turn:] + line_up[:turn]:
            if contender.name in results.faults:
                continue
            try:
                figures = _once(scenario, contender, python, quick, f"b{number}")
            except Failed as fault:
                results.faults[contender.name] = str(fault)
                results.rounds[contender.name].append(None)
                say(f"{scenario.name}: {contender.name} failed: {fault}")
                continue
            results.rounds[contender.name].append(figures)
            say(
                f"{scenario.name} {number + 1}/{many}: {contender.name} "
                f"{figures['rate']:,.0f}/s, {figures['cpu_us']:.1f} us"
            )
    return results


def _available(scenario: Scenario, results: Results) -> list[tuple[Contender, str]]:
    found = []
    for contender in scenario.contenders:
        try:
            found.append((contender, python_for(contender.packages)))
        except Unavailable as fault:
            results.faults[contender.name] = f"could not be installed: {fault}"
    return found


def _once(
    scenario: Scenario, contender: Contender, python: str, quick: bool, prefix: str
) -> Figures:
    with places.fresh(contender.place or scenario.place) as server:
        told: dict[str, Any] = {
            "url": server.url,
            "server_pid": server.pid,
            "prefix": prefix,
            "count": contender.count_of(scenario.quick if quick else scenario.count),
            "options": {**scenario.options, **contender.options},
        }
        if contender.prepare is not None:
            prepare = {**told, "program": contender.prepare, "loop": contender.loop}
            _child(python, prepare, scenario.timeout_s)
        elif scenario.prepare is not None:
            prepare = {**told, "program": scenario.prepare, "loop": "uvloop"}
            _child(sys.executable, prepare, scenario.timeout_s)
        task = {**told, "program": contender.program, "loop": contender.loop}
        figures = _child(python, task, scenario.timeout_s)
    if figures is None:
        raise Failed(f"{contender.program} measured nothing")
    return figures


def _child(python: str, told: dict[str, Any], timeout_s: float) -> Figures | None:
    """Run one program in a process of its own; its figures, if it measured any."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        return _ran(python, told, timeout_s, folder)


def _ran(python: str, told: dict[str, Any], timeout_s: float, folder: str) -> Figures | None:
    """The same; applications of peers that read no stdin find their address in ``BENCH_URL``."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "BENCH_URL": told["url"],
        "BENCH_COUNT": str(Path(folder) / "count"),
    }
    try:
        ran = subprocess.run(
            [python, "-m", "bench.kit.child"],
            input=json.dumps(told) + "\n", capture_output=True, text=True,
            timeout=timeout_s, env=environment, cwd=ROOT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{told['program']} did not end within {timeout_s:g} s") from error
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-6:]
        raise Failed(f"{told['program']} ended with {ran.returncode}: " + " | ".join(last))
    for line in ran.stdout.splitlines():
        if line.startswith(MARK):
            figures: Figures = json.loads(line.removeprefix(MARK))
            return figures
    return None
