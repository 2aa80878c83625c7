"""Where the public cases are, and the one among them that nobody can pass as it is written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.conformance.ojs.case import Case, Step

__all__ = ["IMPOSSIBLE", "corrected", "find", "missing"]

IMPOSSIBLE: Final = "L1-RTR-014"
"""Asks for error types that its own requests never send (see `corrected`)."""

_PLACES: Final = ("../shared/ojs-conformance/suites",)
_ROOT: Final = Path(__file__).parents[3]


def find() -> Path | None:
    """The folder of the cases: ``PENSTOCK_OJS_SUITES``, or beside the project."""
    named = os.environ.get("PENSTOCK_OJS_SUITES")
    places = [Path(named)] if named else [_ROOT / place for place in _PLACES]
    return next((place.resolve() for place in places if place.is_dir()), None)


def missing() -> str:
    return (
        "the public Open Job Spec cases are not here: put them at ../shared/ojs-conformance/suites"
        " or name their folder in PENSTOCK_OJS_SUITES"
    )


def corrected(case: Case) -> Case:
    """``case`` with the error types put back into its nacks, as an earlier revision had them:
    the n-th failure carries the type that the case asserts of ``errors[n]``."""
    wanted = [
        step.assertions.get("body", {}).get(f"$.job.errors[{n}].type")
        for step in case.steps
        for n in range(len(case.steps))
    ]
    types = iter([name for name in wanted if name is not None])
    steps = [_with_type(step, types) for step in case.steps]
    return replace(case, name=f"{case.name}-corrected", steps=tuple(steps))


def _with_type(step: Step, types: Iterator[str]) -> Step:
    if not step.path.endswith("/nack"):
        return step
    body = deepcopy(step.body)
    body["error"]["type"] = next(types)
    return replace(step, body=body)
