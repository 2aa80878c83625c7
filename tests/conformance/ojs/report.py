"""Verdicts into what people ask for: how many passed, and which level was reached."""

from __future__ import annotations

from collections.abc import Iterable

from tests.conformance.ojs.modes import Mode
from tests.conformance.ojs.runner import Verdict

__all__ = ["level_reached", "summary"]


def level_reached(verdicts: Iterable[Verdict]) -> int:
    """The highest level up to which nothing failed; -1 when level 0 has failures."""
    failed = {v.case.level for v in verdicts if not v.passed}
    levels = sorted({v.case.level for v in verdicts} | failed)
    reached = -1
    for level in levels:
        if level in failed:
            break
        reached = level
    return reached


def summary(verdicts: list[Verdict]) -> str:
    """A few lines for each meaning, then every miss."""
    lines = []
    for mode in Mode:
        mine = [v for v in verdicts if v.mode is mode]
        if not mine:
            continue
        lines.append(f"{mode.value}: level {level_reached(mine)} reached")
        for level in sorted({v.case.level for v in mine}):
            here = [v for v in mine if v.case.level == level]
            lines.append(f"  level {level}: {sum(v.passed for v in here)} of {len(here)}")
        for verdict in (v for v in mine if not v.passed):
            lines.append(f"  FAIL {verdict.case.key}")
            lines += [f"       {miss}" for miss in verdict.misses]
    return "\n".join(lines)
