"""Schemas as announced, enforced where that is asked for (``enforce_schemas``).

A producer's input is checked before it is sent; a worker checks the input of handlers that
do not decode it themselves, and what every handler returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from penstock.core.errors import BadInput, BadResult
from penstock.core.outcome import Done, Failed, Outcome, failure_of
from penstock.core.schema import Validator
from penstock.protocols.natq.rules import UNFIT_RESULT
from penstock.protocols.natq.wire import Output

if TYPE_CHECKING:
    from penstock.protocols.natq.wire import TaskDefinition

__all__ = ["ResultCheck", "UnfitResult", "input_validator", "refuse_unfit"]


class UnfitResult(BadResult):
    """A handler returned something else than its task announces."""

    code = UNFIT_RESULT
    remedy = "correct the handler, or the output schema it is registered with"


class ResultCheck:
    """Holds what handlers of one task return against its announced output schema."""

    def __init__(self, definition: TaskDefinition) -> None:
        self._task_id = definition.id
        self._validator: Validator | None = None
        if definition.output_schema is not None:
            self._validator = Validator.of(definition.output_schema)

    def judged(self, outcome: Outcome) -> Outcome:
        """``outcome``, or a failure for good where its result does not fit."""
        if self._validator is None or type(outcome) is not Done:
            return outcome
        value: Any = outcome.value
        if isinstance(value, Output):
            if value.status >= 300:
                return outcome
            value = None if value.data is UNSET else value.data
        problems = self._validator.problems(value)
        if not problems:
            return outcome
        path, message = problems[0]
        error = UnfitResult(
            f"the result of {self._task_id!r} does not fit its schema: {message} at {path}"
        )
        return Failed(failure_of(error))


def refuse_unfit(validator: Validator, value: Any, what: str) -> None:
    """Raise `BadInput` for the first problem ``validator`` finds, naming how many there are."""
    problems = validator.problems(value)
    if not problems:
        return
    path, message = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    raise BadInput(
        f"{what} does not fit its schema: {message}{more}",
        path=path,
        remedy="compare it with the schema: penstock task show",
    )


def input_validator(schema: str | None) -> Validator | None:
    """A validator for the input of a handler that takes anything."""
    return None if schema is None else Validator.of(schema)
