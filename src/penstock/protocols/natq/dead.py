"""Dead letters: copies of jobs that used up their attempts, and how they get another life.

Opt-in, with an attempt limit. The copy is written before the final record, outside the
job subjects, so no other SDK's worker ever sees it. Replaying one removes the final record
first, or the worker would take the job for finished.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from penstock.broker.frames import header_lines, parse_headers
from penstock.broker.publisher import Stored
from penstock.broker.puller import Message
from penstock.broker.streams import ApiError, StoredMessage
from penstock.core import points
from penstock.core.errors import PenstockError
from penstock.protocols.natq.wire import Output, decode_output, header_text, result_key

if TYPE_CHECKING:
    from penstock.protocols.natq.room import Room

__all__ = ["DeadLetter", "bury", "dead_letters", "drop", "replay"]

_log = logging.getLogger("penstock.natq")
_NOT_CARRIED: Final = ("Nats-", "Penstock-")
_TASK: Final = "Penstock-Task"
_RUN: Final = "Penstock-Run"
_ATTEMPTS: Final = "Penstock-Attempts"
_STATUS: Final = "Penstock-Status"
_ERROR: Final = "Penstock-Error"


class NotReplayed(PenstockError):
    """A dead letter could not be given another life."""

    code = "natq.replay"
    remedy = "the dead letter is still there; try again when the server answers"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter: what was asked, why it ended, and where its copy lies."""

    seq: int
    task_id: str
    run_id: str
    attempts: int
    status: int
    error: str
    died_at: datetime
    payload: bytes
    headers: bytes | None = None


async def bury(room: Room, message: Message, output: Output, attempts: int) -> bool:
    """Keep a copy, and say whether there is one.

    A failure is logged and the job ends all the same: its record says why.
    """
    if not room.options.dead_letters:
        return False
    error = output.error if isinstance(output.error, str) else ""
    fields = {
        _TASK: output.task_id,
        _RUN: output.id,
        _ATTEMPTS: str(attempts),
        _STATUS: str(output.status),
        _ERROR: header_text(error),
    }
    subject = f"{room.options.dead_prefix}{output.task_id}".encode()
    answer = await room.publisher.publish(
        subject,
        message.payload,
        msg_id=f"{output.task_id}.{output.id}.{message.stream_seq}",
        headers=_carried(message.headers) + header_lines(fields),
    )
    if not isinstance(answer, Stored):
        _log.error("no dead letter was kept of %s %s: %s", output.task_id, output.id, answer)
    if points.armed:
        points.reach("natq.buried")
    return isinstance(answer, Stored)


async def dead_letters(
    room: Room, task_id: str = "", *, after: int = 0
) -> AsyncIterator[DeadLetter]:
    """Dead letters in the order they died, all or of one task, past sequence ``after``."""
    subject = room.options.dead_prefix + (task_id or ">")
    seq = after + 1
    while True:
        try:
            stored = await room.jetstream.get_message(
                room.options.dead_stream, seq, next_by_subj=subject
            )
        except ApiError as error:
            if error.missing:
                return
            raise
        if stored is None:
            return
        yield _letter(stored, room)
        seq = stored.seq + 1


async def replay(room: Room, letter: DeadLetter) -> bool:
    """Give ``letter`` another life: its record goes, its job is published, then its copy goes.

    A crash in between leaves the copy, and replaying again does no harm: the job's message
    id is made from the copy, so the stream keeps one, and only the record that the copy's own
    death left is removed. What ended since then stands, and the copy goes. ``False``, with
    nothing changed, while the run is alive. Raises `NotReplayed`.
    """
    key = result_key(letter.task_id, letter.run_id)
    entry = await room.results.get(key, leader=True)
    if entry is not None and not entry.deleted:
        record = decode_output(entry.value)
        if not record.is_final:
            return False
        if record.status != letter.status:  # it was replayed before, and has ended
            await drop(room, letter)
            return True
        gone = await room.results.purge(key, entry.revision)
        if not isinstance(gone, Stored):
            raise NotReplayed(f"the record of {letter.task_id} {letter.run_id} stayed: {gone}")
    if points.armed:
        points.reach("natq.replay_erased")
    answer = await room.publisher.publish(
        (room.options.async_prefix + letter.task_id).encode(),
        letter.payload,
        msg_id=f"replay.{room.options.dead_stream}.{letter.seq}",
        headers=_carried(letter.headers) or None,
    )
    if not isinstance(answer, Stored):
        raise NotReplayed(f"{letter.task_id} {letter.run_id} was not published: {answer}")
    if points.armed:
        points.reach("natq.replay_published")
    await drop(room, letter)
    return True


async def drop(room: Room, letter: DeadLetter) -> bool:
    """Forget ``letter``."""
    return await room.jetstream.delete_message(room.options.dead_stream, letter.seq)


def _letter(stored: StoredMessage, room: Room) -> DeadLetter:
    fields: Mapping[str, str] = parse_headers(stored.headers) if stored.headers else {}
    return DeadLetter(
        seq=stored.seq,
        task_id=fields.get(_TASK) or stored.subject.removeprefix(room.options.dead_prefix),
        run_id=fields.get(_RUN, ""),
        attempts=int(fields.get(_ATTEMPTS) or 0),
        status=int(fields.get(_STATUS) or 0),
        error=fields.get(_ERROR, ""),
        died_at=stored.stored_at,
        payload=stored.payload,
        headers=stored.headers,
    )


def _carried(headers: bytes | None) -> bytes:
    """The sender's own headers, without those that steered a publish or tell of the death."""
    if headers is None:
        return b""
    kept = {k: v for k, v in parse_headers(headers).items() if not k.startswith(_NOT_CARRIED)}
    return header_lines(kept)
