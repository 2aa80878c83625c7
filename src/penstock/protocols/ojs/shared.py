"""What all parts of one engine share: where things lie, what is known, time and chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

from msgspec.structs import replace

from penstock.protocols.ojs.books import Books
from penstock.protocols.ojs.instants import in_ms
from penstock.protocols.ojs.locks import Locks
from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.ojs.queues import Queues, QueueSettings
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.room import Room
from penstock.protocols.ojs.slots import LimitRow, Slots, still_counts
from penstock.protocols.ojs.table import Table
from penstock.protocols.ojs.waiting import Bells

__all__ = ["Shared", "utc_now"]


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class Shared:
    """``bells`` ring when a queue has something to fetch, ``drained`` when one has room."""

    room: Room
    options: OjsOptions
    clock: Callable[[], datetime] = utc_now
    dice: Random = field(default_factory=Random)
    name: str = ""
    follows: bool = True
    bells: Bells = field(default_factory=Bells)
    drained: Bells = field(default_factory=Bells)
    books: Books = field(init=False)
    queues: Queues = field(init=False)
    slots: Slots = field(init=False)
    locks: Locks = field(init=False)

    def __post_init__(self) -> None:
        room = self.room
        self.books = Books(room, follows=self.follows)
        self.queues = Queues(Table(room.queues, "queue", QueueSettings))
        self.slots = Slots(Table(room.queues, "limit", LimitRow), self._runs)
        self.locks = Locks(room.unique, self.books.store)

    @property
    def now_ms(self) -> int:
        return in_ms(self.clock())

    def keeping(self, record: Record) -> OjsOptions:
        """The options, with how long the queue of this job wants finished ones kept."""
        kept = self.queues.config(record.job.queue).keep_s
        if not kept:
            return self.options
        spans = {f"keep_{state}": timedelta(seconds=span) for state, span in kept.items()}
        return replace(self.options, **spans)

    def _runs(self, job_id: str, attempt: int, granted_ms: int) -> bool:
        entry = self.books.index.get(job_id)
        if entry is None:
            return False
        return still_counts(entry.state, entry.attempt, attempt, granted_ms, self.now_ms)
