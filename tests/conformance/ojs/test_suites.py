"""The public cases themselves: all are understood, and one of them cannot be met."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conformance.ojs import suites
from tests.conformance.ojs.case import Case, load

pytestmark = pytest.mark.skipif(suites.find() is None, reason=suites.missing())


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    folder = suites.find()
    assert folder is not None
    return load(folder)


def test_every_case_is_understood_in_full(cases: list[Case]) -> None:
    assert Counter(case.level for case in cases) == {0: 65, 1: 25, 2: 13, 3: 14, 4: 16}
    assert len({case.key for case in cases}) == 133


def test_the_impossible_case_can_be_met_once_corrected(cases: list[Case]) -> None:
    [case] = [case for case in cases if case.test_id == suites.IMPOSSIBLE]

    sent = [step.body["error"] for step in suites.corrected(case).steps if "nack" in step.path]

    assert [error["type"] for error in sent] == [
        "ConnectionTimeout",
        "RateLimitExceeded",
        "InternalServerError",
    ]
    assert all("type" not in step.body["error"] for step in case.steps if "nack" in step.path)
