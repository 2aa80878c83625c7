"""Answers about many jobs at once, as values for whoever shows them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from penstock.protocols.ojs.entry import Entry
from penstock.protocols.ojs.index import Index
from penstock.protocols.ojs.names import STATES
from penstock.protocols.ojs.queues import QueueSettings
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.throttle import RateLimit

__all__ = ["EntryPage", "JobPage", "JobQuery", "LimitView", "QueueView", "Totals"]


class QueueView(Struct, frozen=True):
    """``settings`` is ``None`` for a queue nobody has said anything about."""

    name: str
    settings: QueueSettings | None
    counts: dict[str, int]
    depth: int

    @property
    def paused(self) -> bool:
        return self.settings is not None and self.settings.paused


class LimitView(Struct, frozen=True):
    key: str
    policy: RateLimit
    active: int
    started: int
    next_allowed_ms: int
    waiting: int


class Totals(Struct, frozen=True):
    queues: int
    workers: int
    jobs: dict[str, int]
    dead_letters: int
    uptime_s: float


class JobPage(Struct, frozen=True):
    """``cursor`` goes on from here; empty at the end. ``total``: how many there are in all."""

    jobs: list[Record]
    cursor: str
    total: int


class EntryPage(Struct, frozen=True):
    entries: list[Entry]
    cursor: str


class JobQuery(Struct, frozen=True, kw_only=True):
    """Which jobs: empty is any. ``job_type`` may end in ``*``. Times in milliseconds, since when a
    job is in its state."""

    states: tuple[str, ...] = ()
    queue: str | None = None
    job_type: str = ""
    tenant: str = ""
    since_ms: int = 0
    until_ms: int = 0
    cursor: str = ""
    limit: int = 50
    offset: int = 0

    @property
    def wanted(self) -> Callable[[Entry], bool] | None:
        """What an entry must meet beyond state and queue, or nothing."""
        if not (self.job_type or self.tenant or self.since_ms or self.until_ms):
            return None
        return self._meets

    def _meets(self, entry: Entry) -> bool:
        kind = self.job_type
        if kind and not (
            entry.type.startswith(kind[:-1]) if kind.endswith("*") else entry.type == kind
        ):
            return False
        if self.tenant and entry.tenant != self.tenant:
            return False
        return (not self.since_ms or entry.stamp_ms >= self.since_ms) and (
            not self.until_ms or entry.stamp_ms <= self.until_ms
        )

    def run(self, index: Index) -> tuple[EntryPage, int]:
        """The page, and how many jobs there are in all (counted, where a filter asks)."""
        states = self.states or STATES
        found, cursor = index.listed_many(
            states,
            self.queue,
            cursor=self.cursor,
            limit=self.limit,
            skip=self.offset,
            wanted=self.wanted,
        )
        return EntryPage(found, cursor), index.count_of(states, self.queue, self.wanted)

    def run_dead(self, index: Index) -> tuple[EntryPage, int]:
        """As `run`, over the dead letters."""
        every = self.queue is None and self.wanted is None
        total = index.dead_letter_count if every else sum(map(self.meets, index.all_dead()))
        found, cursor = index.dead_letters(
            cursor=self.cursor,
            limit=self.limit,
            skip=self.offset,
            wanted=None if every else self.meets,
        )
        return EntryPage(found, cursor), total

    def meets(self, entry: Entry) -> bool:
        """Whether an entry is wanted, its state aside."""
        return (self.queue is None or entry.queue == self.queue) and self._meets(entry)
