"""natq for operators: its queues, its records, its dead letters, through the common port.

A *queue* is an async task with its consumer. A record is found by its state: ``processing``,
``succeeded``, ``failed``; ``dead`` lists the dead letters, whose id is their run id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import UNSET

from penstock.broker.bucket import Entry, Watch
from penstock.broker.streams import ApiError
from penstock.core import codec
from penstock.core.admin import Done, Page, QueueView, WorkView
from penstock.core.errors import UnknownName
from penstock.core.invocation import ProtocolName
from penstock.protocols.natq.dead import DeadLetter, dead_letters, drop, replay
from penstock.protocols.natq.definitions import Definitions
from penstock.protocols.natq.results import forget_large
from penstock.protocols.natq.room import Room
from penstock.protocols.natq.wire import (
    Output,
    StatusCode,
    TaskType,
    check_task_id,
    consumer_name,
    decode_output,
    result_key,
)

__all__ = ["NatqAdmin", "state_of"]

_STATES: Final = ("processing", "succeeded", "failed", "dead")


class NatqAdmin:
    """Answers for one natq on one server."""

    protocol: ProtocolName = "natq"
    actions: Sequence[str] = ("rm", "replay", "drop")

    def __init__(self, room: Room) -> None:
        self._room = room

    async def queues(self) -> Sequence[QueueView]:
        return [await self._queue(task_id) for task_id in await self._async_tasks()]

    async def find(
        self, *, name: str = "", state: str = "", limit: int = 100, cursor: str = ""
    ) -> Page:
        """Records of one task or all, in the order they were last written; or dead letters."""
        if state and state not in _STATES:
            raise UnknownName("state", state, _STATES)
        if state == "dead":
            return await self._dead(name, limit, int(cursor or 0))
        after = int(cursor or 0)
        found: list[tuple[int, WorkView]] = []
        watch = await self._room.results.watch(_keys_of(name), ignore_deletes=True)
        async with watch:
            async for entry in _standing(watch):  # in the order they were written
                view = _view(entry)
                if entry.revision > after and (not state or view.state == state):
                    found.append((entry.revision, view))
                if len(found) > limit:
                    break
        more = str(found[limit - 1][0]) if len(found) > limit else ""
        return Page(tuple(view for _, view in found[:limit]), more)

    async def show(self, name: str, work_id: str) -> WorkView | None:
        entry = await self._room.results.get(result_key(name, work_id), leader=True)
        return None if entry is None or entry.deleted else _view(entry)

    async def act(self, action: str, name: str, work_ids: Sequence[str]) -> Done:
        """``rm`` removes records; ``replay`` and ``drop`` take dead letters (all of a task
        when no ids are given)."""
        match action:
            case "rm":
                return await self._remove(name, work_ids)
            case "replay":
                return await self._each_dead(name, work_ids, replay)
            case "drop":
                return await self._each_dead(name, work_ids, drop)
            case _:
                raise UnknownName("action", action, self.actions)

    async def watch(self, *, name: str = "") -> AsyncIterator[WorkView]:
        """Every change of a record from now on, as it happens."""
        watch = await self._room.results.watch(_keys_of(name), updates_only=True)
        async with watch:
            async for entry in watch:
                yield _view(entry)

    async def _remove(self, name: str, work_ids: Sequence[str]) -> Done:
        """Withdraw records, and the large results they refer to."""
        missing = []
        for work_id in work_ids:
            key = result_key(name, work_id)
            entry = await self._room.results.get(key, leader=True)
            if entry is None or entry.deleted:
                missing.append(work_id)
                continue
            await self._room.results.purge(key)
            with suppress(codec.JsonError):
                await forget_large(decode_output(entry.value), self._room)
        return Done(len(work_ids) - len(missing), tuple(missing))

    async def _async_tasks(self) -> list[str]:
        found = await Definitions(self._room).all()
        return sorted(one.id for one in found.values() if one.type is TaskType.ASYNC)

    async def _queue(self, task_id: str) -> QueueView:
        options = self._room.options
        try:
            info = await self._room.jetstream.consumer_info(options.stream, consumer_name(task_id))
        except ApiError as error:
            if not error.missing:
                raise
            return QueueView(protocol="natq", name=task_id)
        detail = {"redelivered": info.num_redelivered, "pulls": info.num_waiting}
        return QueueView(
            protocol="natq",
            name=task_id,
            waiting=info.num_pending,
            running=info.num_ack_pending,
            failed=await self._dead_count(task_id),
            detail=detail,
        )

    async def _dead_count(self, task_id: str) -> int:
        options = self._room.options
        subject = options.dead_prefix + task_id
        try:
            counts = await self._room.jetstream.subject_counts(options.dead_stream, subject)
        except ApiError as error:
            if error.missing:
                return 0
            raise
        return counts.get(subject, 0)

    async def _dead(self, name: str, limit: int, after: int) -> Page:
        found: list[DeadLetter] = []
        _keys_of(name)
        async for letter in dead_letters(self._room, name, after=after):
            if len(found) == limit:
                return Page(tuple(map(_dead_view, found)), str(found[-1].seq))
            found.append(letter)
        return Page(tuple(map(_dead_view, found)))

    async def _each_dead(self, name: str, work_ids: Sequence[str], action: Any) -> Done:
        wanted = set(work_ids)
        refused: set[str] = set()
        changed = 0
        async for letter in dead_letters(self._room, name):
            if wanted and letter.run_id not in wanted:
                continue
            if await action(self._room, letter):
                changed += 1
            else:
                refused.add(letter.run_id)
            wanted.discard(letter.run_id)
            if work_ids and not wanted:
                break
        return Done(changed, tuple(sorted(wanted | refused)))


def _keys_of(name: str) -> str:
    """The records of one task or of all. A name is checked: it becomes part of a subject."""
    return f"{check_task_id(name)}.>" if name else ">"


async def _standing(watch: Watch) -> AsyncIterator[Entry]:
    """What stood when ``watch`` began, one by one: a bucket may hold more than memory does."""
    while not watch.ready.is_set():
        entry = await watch.next(1.0)
        if entry is not None:
            yield entry


def state_of(output: Output) -> str:
    """The state of a record in one word."""
    if output.status == StatusCode.PROCESSING:
        return "processing"
    return "succeeded" if output.status < 300 else "failed"


def _view(entry: Entry) -> WorkView:
    task_id, _, run_id = entry.key.partition(".")
    if entry.deleted:
        return WorkView(
            protocol="natq", name=task_id, work_id=run_id, state="dropped", at=entry.created_at
        )
    try:
        output = decode_output(entry.value)
    except codec.JsonError as error:
        return WorkView(
            protocol="natq",
            name=task_id,
            work_id=run_id,
            state="unreadable",
            at=entry.created_at,
            error=str(error),
            detail={"revision": entry.revision},
        )
    return WorkView(
        protocol="natq",
        name=task_id,
        work_id=run_id,
        state=state_of(output),
        attempt=None if output.attempt is UNSET else output.attempt,
        at=entry.created_at,
        result=None if output.data is UNSET else output.data,
        error="" if output.error is UNSET else str(output.error),
        detail={"status": output.status, "revision": entry.revision},
    )


def _dead_view(letter: DeadLetter) -> WorkView:
    try:
        payload: Any = codec.decode(letter.payload)
    except codec.JsonError:
        payload = letter.payload.decode(errors="replace")
    return WorkView(
        protocol="natq",
        name=letter.task_id,
        work_id=letter.run_id,
        state="dead",
        attempt=letter.attempts,
        at=letter.died_at,
        error=letter.error,
        detail={"seq": letter.seq, "status": letter.status, "payload": payload},
    )
