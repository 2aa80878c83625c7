"""Channels: which events a listener wants, and how a job's transitions are told to it.

``job:{id}`` and ``queue:{name}`` tell transitions (`job.state_changed`) and progress; ``all``
and ``events`` tell every event under its own name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.protocols.ojs.eventlog import EventFilter
from penstock.protocols.ojs.names import JOB_ID, QUEUE_NAME
from penstock.protocols.ojs.refusal import invalid
from penstock.protocols.ojs.told import Event

__all__ = ["Channel", "Message", "channel_of"]

_INTO: Final = {
    "job.enqueued": "available",
    "job.scheduled": "scheduled",
    "job.started": "active",
    "job.completed": "completed",
    "job.retrying": "retryable",
    "job.discarded": "discarded",
    "job.expired": "discarded",
    "job.cancelled": "cancelled",
}
OVER: Final = frozenset(("completed", "discarded", "cancelled"))


class Message(Struct, frozen=True):
    """One thing to tell: its name, its data as JSON, the id to resume after."""

    id: str
    name: str
    data: bytes
    is_last: bool = False


class Channel(Struct, frozen=True, kw_only=True):
    """``names``: only messages that are called so; empty is any."""

    name: str
    wanted: EventFilter
    transitions: bool
    names: frozenset[str] = frozenset()

    def message(self, event: Event) -> Message | None:
        """What to tell of an event; ``None`` when this channel does not tell of it."""
        if not self.transitions:
            told = Message(event.id, event.type, msgspec.json.encode(event))
        elif event.type in _INTO:
            told = _transition(event)
        elif event.type == "job.progress":
            told = Message(event.id, event.type, msgspec.json.encode(event.data))
        else:
            return None
        return told if not self.names or told.name in self.names else None


def channel_of(name: str, only: Iterable[str] = ()) -> Channel:
    """The channel of that name. Raises `Refused` for one that cannot be."""
    names = frozenset(only)
    kind, _, rest = name.partition(":")
    if name in ("all", "events"):
        return Channel(name=name, wanted=EventFilter(), transitions=False, names=names)
    if kind == "job" and JOB_ID.fullmatch(rest):
        wanted = EventFilter(subject=rest)
        return Channel(name=name, wanted=wanted, transitions=True, names=names)
    if kind == "queue" and QUEUE_NAME.fullmatch(rest):
        wanted = EventFilter(queues=(rest,))
        return Channel(name=name, wanted=wanted, transitions=True, names=names)
    raise invalid("channel", "must be all, job:{id} or queue:{name}")


def state_message(job_id: str, queue: str, job_type: str, state: str, at: str) -> Message:
    """What a listener is told of a job that is over already."""
    data: dict[str, Any] = {
        "job_id": job_id,
        "queue": queue,
        "type": job_type,
        "from": None,
        "to": state,
        "timestamp": at,
    }
    return Message("", "job.state_changed", msgspec.json.encode(data), is_last=True)


def _transition(event: Event) -> Message:
    into = _INTO[event.type]
    data = {
        "job_id": event.data["job_id"],
        "queue": event.data["queue"],
        "type": event.data["job_type"],
        "from": event.data.get("from") or None,
        "to": into,
        "timestamp": event.time,
        "event": event.type,
    }
    return Message(event.id, "job.state_changed", msgspec.json.encode(data), into in OVER)
