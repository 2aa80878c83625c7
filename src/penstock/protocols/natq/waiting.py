"""Waiting for results without polling: hints from the broker, the truth from the bucket.

A put to a bucket is a message on ``$KV.{bucket}.{key}``, so a plain subscription to that
subject hears of it at once and needs no consumer on the server. A hint may be of a write
that was then refused, or come before the write can be read; so it only says "look now".
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from penstock.broker.entry import Entry, Operation, operation_of
from penstock.broker.errors import LinkClosed, LinkError
from penstock.broker.streams import ApiError
from penstock.core.codec import JsonError
from penstock.core.errors import Waited
from penstock.protocols.natq.results import ResultUnreadable
from penstock.protocols.natq.wire import Output, StatusCode, decode_output, result_key

if TYPE_CHECKING:
    from penstock.protocols.natq.room import Room

__all__ = ["ResultWaits", "dropped"]

_READABLE_WITHIN: Final = (0.0, 0.002, 0.01, 0.05, 0.25, 1.0, 3.0)  # a write just heard of
_AT_FIRST: Final = (0.05, 0.5)  # what was written just before we listened is readable by then
_LOOK_AGAIN: Final = 10.0  # a hint can be lost with a connection; never trust one to come


class ResultWaits:
    """All waits of one client. A reconnect makes every one of them look again."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._open: set[_Wait] = set()
        room.link.on_reconnect(self._look_all)

    async def final(
        self, task_id: str, run_id: str, timeout: float | None, seq: int | None = None
    ) -> Output:
        """The final record of a run, as soon as there is one.

        A result that is dropped on success is caught on its way, or else comes without
        data. Knowing the job's message ``seq``, the marker of an earlier run under the same
        id does not pass for this one's. Raises `Waited` after ``timeout`` seconds.
        """
        wait = _Wait(self._room, task_id, run_id, seq)
        self._open.add(wait)
        try:
            async with asyncio.timeout(timeout):
                return await wait.final()
        except TimeoutError as error:
            raise Waited(
                f"no result of {task_id} {run_id} within {timeout or 0:g} s",
                remedy="see whether a worker serves the task: penstock task ls",
            ) from error
        finally:
            self._open.discard(wait)

    def _look_all(self) -> None:
        for wait in self._open:
            wait.hint.set()


class _Wait:
    """One key under observation."""

    def __init__(self, room: Room, task_id: str, run_id: str, seq: int | None) -> None:
        self._seq = seq
        self.hint = asyncio.Event()
        self._room = room
        self._task_id = task_id
        self._run_id = run_id
        self._key = result_key(task_id, run_id)
        self._heard: Output | None = None

    async def final(self) -> Output:
        subject = self._room.results.prefix + self._key
        subscription = await self._room.link.subscribe(subject, self._on_hint)
        looks = iter(_AT_FIRST)
        try:
            while True:
                self.hint.clear()
                output = await self._look()
                if output is not None:
                    return output
                await self._next_hint(next(looks, _LOOK_AGAIN))
        finally:
            await subscription.unsubscribe()

    def _on_hint(
        self, _subject: bytes, _reply: bytes | None, headers: bytes | None, payload: bytes
    ) -> None:
        if operation_of(headers) is Operation.PUT:
            try:
                heard = decode_output(payload)
            except JsonError:
                return
            if not heard.is_final:
                return
            self._heard = heard
        self.hint.set()

    async def _next_hint(self, within: float) -> None:
        try:
            async with asyncio.timeout(within):
                await self.hint.wait()
        except TimeoutError:
            return

    async def _look(self) -> Output | None:
        """Read the record; patiently after a hint, whose write may not be readable yet."""
        heard = self._heard
        for pause in _READABLE_WITHIN if heard is not None else (0.0,):
            await asyncio.sleep(pause)
            try:
                entry = await self._room.results.get(self._key, leader=True)
            except LinkClosed:
                raise
            except LinkError:  # cut off for now: a reconnect has us look again
                return None
            if entry is None:
                continue
            output = await self._end_of(entry)
            if output is not None:
                return output
        if self._heard is heard:  # it was refused; one heard meanwhile is waited for in its turn
            self._heard = None
        return None

    async def _end_of(self, entry: Entry) -> Output | None:
        if entry.operation is Operation.DEL:
            if self._seq is None or await self._has_left():
                return self._heard or dropped(self._task_id, self._run_id)
            return None
        if entry.deleted:  # purged: an operator withdrew it, and the job may live again
            return None
        output = self._read(entry.value)
        return output if output.is_final else None

    async def _has_left(self) -> bool:
        """Is the job out of the queue, and its key still without a record?"""
        options, js = self._room.options, self._room.jetstream
        try:
            if await js.get_message(options.stream, self._seq) is not None:
                return False
            entry = await self._room.results.get(self._key, leader=True)
        except (LinkError, ApiError):
            return False
        if entry is not None and not entry.deleted:  # it ended between our two questions
            self.hint.set()
            return False
        return True

    def _read(self, record: bytes) -> Output:
        try:
            return decode_output(record)
        except JsonError as error:
            raise ResultUnreadable(f"the record {self._key} cannot be read: {error}") from error


def dropped(task_id: str, run_id: str) -> Output:
    """What is known of a result that was dropped unseen: its task succeeded."""
    return Output(run_id, task_id, int(StatusCode.OK), UNSET)
