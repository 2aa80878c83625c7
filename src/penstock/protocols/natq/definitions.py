"""What workers have announced, as producers see it: kinds, subjects, schemas.

Read when first needed and kept. Before a producer is refused anything because of what is
kept, it is read again: a worker that was deployed since may have announced something new.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core import codec
from penstock.core.errors import BadInput, ConfigError
from penstock.core.invocation import MISSING
from penstock.core.schema import Validator
from penstock.protocols.natq.schemas import refuse_unfit
from penstock.protocols.natq.wire import (
    TaskDefinition,
    TaskType,
    check_task_id,
    decode_definition,
    subject_of,
    without_reserved,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.broker.bucket import Entry
    from penstock.protocols.natq.room import Room

__all__ = ["Announced", "Definitions"]

_log = logging.getLogger("penstock.natq")
_ABSENT_S = 5.0  # how long a task that nobody has announced is not asked for again


@dataclass(frozen=True, slots=True)
class Announced:
    """One task as a producer needs it; without a definition its subject is computed."""

    subject: bytes
    definition: TaskDefinition | None = None
    validator: Validator | None = None

    def is_other(self, kind: TaskType) -> bool:
        """Is it announced, and as a task of the other kind?"""
        return self.definition is not None and self.definition.type is not kind


class Definitions:
    """The announced tasks of one natq, for one producer."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._known: dict[tuple[str, TaskType], Announced] = {}
        self._absent_until: dict[str, float] = {}

    async def all(self) -> dict[str, TaskDefinition]:
        """Every announced task by id, read now. One that cannot be read is logged and left out."""
        entries = await self._room.tasks.get_many(await self._room.tasks.keys())
        found = self._readable(entries.values())
        return {one.id: one for one in sorted(found, key=lambda one: one.id)}

    async def read(self, task_id: str) -> TaskDefinition | None:
        """What is announced of one task at this moment."""
        entry = await self._room.tasks.get(check_task_id(task_id))
        return next(iter(self._readable([] if entry is None else [entry])), None)

    async def of(self, task_id: str, kind: TaskType, *, fresh: bool = False) -> Announced:
        """How to reach ``task_id`` as a task of this kind. Raises `BadInput` for the other kind."""
        known = self._known.get((task_id, kind))
        if known is None or fresh or known.is_other(kind) or self._may_be_there_now(task_id):
            known = self._announced(task_id, kind, await self.read(task_id))
        if known.definition is not None and known.is_other(kind):
            raise _wrong_kind(known.definition)
        return known

    async def learn(self) -> None:
        """Read all async tasks, so that `at_hand` knows them: for producers that cannot wait."""
        for definition in (await self.all()).values():
            self._announced(definition.id, TaskType.ASYNC, definition)

    def at_hand(self, task_id: str) -> Announced:
        """As `of` for a job, from what has been read. Raises `BadInput` for a sync task."""
        known = self._known.get((task_id, TaskType.ASYNC))
        if known is None:
            return self._announced(check_task_id(task_id), TaskType.ASYNC, None)
        if known.definition is not None and known.is_other(TaskType.ASYNC):
            raise _wrong_kind(known.definition)
        return known

    async def check_input(self, task_id: str, kind: TaskType, body: Any) -> None:
        """Raise `BadInput` with the path of the first field that does not fit."""
        known = await self.of(task_id, kind)
        try:
            self.check_at_hand(task_id, known, body)
        except BadInput:  # perhaps only by a schema of yesterday
            known = await self.of(task_id, kind, fresh=True)
            self.check_at_hand(task_id, known, body)

    def check_at_hand(self, task_id: str, known: Announced, body: Any) -> None:
        if known.validator is not None:
            value = {} if body is MISSING or body is None else without_reserved(body)
            refuse_unfit(known.validator, value, f"the input of {task_id!r}")

    def forget(self, task_id: str) -> None:
        """Nobody answered there: look again before the next try."""
        for kind in TaskType:
            self._known.pop((task_id, kind), None)

    def _announced(
        self, task_id: str, kind: TaskType, definition: TaskDefinition | None
    ) -> Announced:
        options = self._room.options
        prefix = options.sync_prefix if kind is TaskType.SYNC else options.async_prefix
        own_kind = definition if definition is not None and definition.type is kind else None
        known = Announced(
            subject_of(task_id, prefix, own_kind).encode(),
            definition,
            _validator(definition) if options.enforce_schemas else None,
        )
        self._known[task_id, kind] = known
        if definition is None:
            self._absent_until[task_id] = time.monotonic() + _ABSENT_S
        else:
            self._absent_until.pop(task_id, None)
        return known

    def _may_be_there_now(self, task_id: str) -> bool:
        until = self._absent_until.get(task_id)
        return until is not None and time.monotonic() >= until

    def _readable(self, entries: Iterable[Entry]) -> list[TaskDefinition]:
        found = []
        for entry in entries:
            if entry.deleted:
                continue
            try:
                found.append(decode_definition(entry.value))
            except codec.JsonError as error:
                _log.warning("the definition of %r cannot be read: %s", entry.key, error)
        return found


def _validator(definition: TaskDefinition | None) -> Validator | None:
    if definition is None or definition.input_schema is None:
        return None
    try:
        return Validator.of(definition.input_schema)
    except ConfigError as error:
        if error.code == "extra.missing":
            raise
        _log.warning("the input schema of %r is not enforced: %s", definition.id, error.message)
        return None


def _wrong_kind(definition: TaskDefinition) -> BadInput:
    if definition.type is TaskType.ASYNC:
        return BadInput(
            f"{definition.id!r} is an async task: it takes jobs, not calls",
            remedy=f"penstock task enqueue {definition.id}, or client.enqueue()",
        )
    return BadInput(
        f"{definition.id!r} is a sync task: it takes calls, not jobs",
        remedy=f"penstock task call {definition.id}, or client.call()",
    )
