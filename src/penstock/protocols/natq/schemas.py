"""Schemas as announced, enforced where both sides asked for it (``enforce_schemas``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core import codec
from penstock.core.errors import BadInput
from penstock.core.invocation import MISSING
from penstock.core.schema import Validator
from penstock.protocols.natq.wire import decode_definition

if TYPE_CHECKING:
    from penstock.protocols.natq.room import Room

__all__ = ["Schemas", "refuse_unfit"]


class Schemas:
    """Validators of announced tasks, made once each."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._inputs: dict[str, Validator | None] = {}

    async def check_input(self, task_id: str, body: Any) -> None:
        """Raise `BadInput` with the path of the first field that does not fit."""
        if task_id not in self._inputs:
            self._inputs[task_id] = await self._announced(task_id)
        validator = self._inputs[task_id]
        if validator is not None:
            refuse_unfit(validator, {} if body is MISSING else body, f"the input of {task_id!r}")

    async def _announced(self, task_id: str) -> Validator | None:
        entry = await self._room.tasks.get(task_id)
        if entry is None or entry.deleted:
            return None
        text = decode_definition(entry.value).input_schema
        return None if text is None else Validator.of(codec.decode(text))


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
