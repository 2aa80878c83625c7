"""Our own server under the public cases: alone, and as two instances behind a round-robin.

Every case that can be passed passes, in the written meaning and in the public one. Those that
watch a cron for minutes run in ``make conformance`` only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio

from tests.conformance.ojs import suites
from tests.conformance.ojs.case import Case, load
from tests.conformance.ojs.runner import Runner
from tests.conformance.ojs.stage import instances

LONG_MS = 60_000
FOLDER = suites.find()
CASES = load(FOLDER) if FOLDER is not None else []
POSSIBLE = [case for case in CASES if case.test_id != suites.IMPOSSIBLE] + [
    suites.corrected(case) for case in CASES if case.test_id == suites.IMPOSSIBLE
]


def _params() -> list[object]:
    """Two groups of cases, so that two test processes share the waiting."""
    found: list[object] = []
    for number, case in enumerate(sorted(POSSIBLE, key=lambda one: -one.waits_ms)):
        marks = [pytest.mark.xdist_group(f"ojs_levels_{number % 2}")]
        if case.waits_ms >= LONG_MS:
            marks.append(pytest.mark.slow)
        found.append(pytest.param(case, id=case.key, marks=marks))
    return found


@dataclass(frozen=True)
class Stage:
    one: Runner
    two: Runner


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    async with (
        httpx.AsyncClient(follow_redirects=True) as http,
        instances(1) as one,
        instances(2) as two,
    ):
        yield Stage(Runner(one, http), Runner(two, http))


pytestmark = [
    pytest.mark.skipif(FOLDER is None, reason=suites.missing()),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest.mark.parametrize("case", _params())
async def test_one_server_passes(case: Case, stage: Stage) -> None:
    await passes(case, stage.one)


@pytest.mark.parametrize("case", _params())
async def test_two_servers_answer_as_one(case: Case, stage: Stage) -> None:
    await passes(case, stage.two)


async def passes(case: Case, runner: Runner) -> None:
    verdicts = await runner.run(case)
    missed = {verdict.mode.value: verdict.misses for verdict in verdicts if not verdict.passed}
    assert not missed


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.key) for c in CASES if c.test_id == suites.IMPOSSIBLE]
)
async def test_one_case_asks_for_what_was_never_sent(case: Case, stage: Stage) -> None:
    """If this one ever passes, the public case was corrected: take it off the list."""
    verdicts = await stage.one.run(case)

    assert not any(verdict.passed for verdict in verdicts)
    assert all("errors[0].type" in " ".join(verdict.misses) for verdict in verdicts)
