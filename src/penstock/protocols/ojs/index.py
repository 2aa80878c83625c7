"""The index: what must be known of all jobs at once, in memory, fed by their records.

Counts, the next job of a queue, what is due, who holds what, listings. It is never the truth:
it is rebuilt from the bucket at start and follows it from then on, and rebuilding it at any
moment gives the same index as following did (a law the tests hold it to). No operation
costs more when more jobs are stored, but for a logarithm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from sys import intern

from penstock.protocols.ojs.entry import Entry, entry_of
from penstock.protocols.ojs.names import STATES
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.shelf import Shelf
from penstock.protocols.ojs.tally import Tally

__all__ = ["Index", "QueueCounts"]

QueueCounts = dict[str, int]
_Ready = Shelf[tuple[int, int, str]]
_Listed = Shelf[tuple[int, str]]


class Index:
    """All jobs by every way of asking. Feed it with `apply` and `forget`, in any order: what is
    older than what it knows is ignored, so own writes may be applied before the watch
    brings them."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._gone: dict[str, int] = {}
        self._counts: dict[str, QueueCounts] = {}
        self._ready: dict[str, _Ready] = {}
        self._listed: dict[tuple[str, str], _Listed] = {}
        self._dead: _Listed = Shelf()
        self._due: Shelf[tuple[int, str]] = Shelf()
        self._unique: dict[str, tuple[str, ...]] = {}
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        self._limited: defaultdict[str, set[str]] = defaultdict(set)
        self._in_line: dict[str, int] = {}
        self._waiting: defaultdict[str, set[str]] = defaultdict(set)  # by transaction
        self._carrying: defaultdict[str, set[str]] = defaultdict(set)
        self._committed: set[str] = set()
        self._crons: dict[str, tuple[int, str]] = {}
        self.tally = Tally()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._entries

    def get(self, job_id: str) -> Entry | None:
        return self._entries.get(job_id)

    # Feeding --------------------------------------------------------------------------

    def apply(self, record: Record, revision: int) -> bool:
        """Take in a record as it was stored; whether that was news."""
        job_id = record.job.id
        known = self._entries.get(job_id)
        if known is not None and known.revision >= revision:
            return False
        if self._gone.get(job_id, 0) >= revision:
            return False
        if known is not None:
            self._take_out(known)
        entry = entry_of(record, revision, visible=self._is_visible(record))
        self._entries[job_id] = entry
        if not entry.visible:
            self._waiting[record.txn].add(job_id)
        self._put_in(entry)
        return True

    def forget(self, job_id: str, revision: int) -> bool:
        """The record was purged at ``revision``."""
        known = self._entries.get(job_id)
        if known is not None and known.revision >= revision:
            return False
        self._gone[job_id] = max(revision, self._gone.get(job_id, 0))
        if known is None:
            return False
        self._take_out(known)
        del self._entries[job_id]
        return True

    def reached(self, revision: int) -> None:
        """The watch has come this far: nothing older will arrive, so purges need no memory."""
        self._gone = {job_id: r for job_id, r in self._gone.items() if r > revision}

    def commit(self, txn: str) -> list[str]:
        """A transaction is committed: its jobs are visible from now on. Their ids."""
        self._committed.add(txn)
        shown = []
        for job_id in sorted(self._waiting.pop(txn, ())):
            entry = self._entries.get(job_id)
            if entry is not None and not entry.visible and entry.txn == txn:
                self._take_out(entry)
                entry.visible = True
                self._put_in(entry)
                shown.append(job_id)
        return shown

    def drop_txn(self, txn: str) -> None:
        """The commit record is gone (aborted and cleaned up, or old)."""
        self._committed.discard(txn)

    def of_txn(self, txn: str) -> list[str]:
        """Visible jobs whose records still name the transaction they came with."""
        return sorted(self._carrying.get(txn, ()))

    def clear(self) -> None:
        """Forget everything: the bucket has been wiped."""
        self.__init__()  # type: ignore[misc]

    def staged(self) -> Iterator[Entry]:
        """Jobs that are not visible yet, for the reconciler."""
        return (self._entries[i] for i in sorted(i for ids in self._waiting.values() for i in ids))

    # Asking ---------------------------------------------------------------------------

    def counts(self, queue: str) -> QueueCounts:
        """How many jobs of ``queue`` are in each state; zeros for a queue never seen."""
        return dict(self._counts.get(queue) or dict.fromkeys(STATES, 0))

    def queues(self) -> list[str]:
        return sorted(self._counts)

    def depth(self, queue: str) -> int:
        """Jobs that wait: available, scheduled and retryable."""
        counts = self._counts.get(queue)
        return (
            0 if counts is None else sum(counts[s] for s in ("available", "scheduled", "retryable"))
        )

    def reserve(
        self, queue: str, most: int, admits: Callable[[Entry], bool] | None = None
    ) -> list[Entry]:
        """The next jobs of ``queue`` by priority, then order, that ``admits`` lets through; taken
        off the shelf, so that nobody else here is offered them. `release` puts one back; a
        record applied meanwhile settles it as well."""
        ready = self._ready.get(queue)
        if ready is None:
            return []
        chosen: list[Entry] = []
        for key in ready.after():
            entry = self._entries[key[2]]
            if admits is None or admits(entry):
                chosen.append(entry)
                if len(chosen) >= most:
                    break
        for entry in chosen:
            ready.remove(entry.ready_key)
        return chosen

    def release(self, job_id: str) -> None:
        """Offer a reserved job again, if it is still available."""
        entry = self._entries.get(job_id)
        if entry is not None and entry.visible and entry.state == "available":
            self._ready_shelf(entry.queue).add(entry.ready_key)

    def has_ready(self, queue: str) -> bool:
        return bool(self._ready.get(queue))

    def first_ready(self, queue: str, most: int) -> list[str]:
        """Who is next in a queue, without reserving anybody."""
        ready = self._ready.get(queue)
        return [] if ready is None else [key[2] for key in islice(ready, most)]

    def next_due_ms(self) -> int | None:
        """When the next record must be looked at."""
        return self._due.first[0] if self._due.first is not None else None

    def due(self, now_ms: int, most: int) -> list[str]:
        """Ids of what is due, earliest first. They stay due until a newer record says otherwise,
        or `postpone` does."""
        found: list[str] = []
        for at_ms, job_id in self._due.after():
            if at_ms > now_ms or len(found) >= most:
                break
            found.append(job_id)
        return found

    def postpone(self, job_id: str, until_ms: int) -> None:
        """Look at a due record again only then (it was tried, or must outlive its time)."""
        entry = self._entries.get(job_id)
        if entry is not None and entry.due_ms:
            self._due.remove((entry.due_ms, job_id))
            entry.due_ms = until_ms
            self._due.add((until_ms, job_id))

    def holder_of(self, unique_key: str) -> Entry | None:
        """The newest job with this unique key, whatever its state."""
        ids = self._unique.get(unique_key, ())
        return max(
            (self._entries[i] for i in ids), key=lambda e: (e.created_ms, e.id), default=None
        )

    def held_by(self, worker: str) -> frozenset[str]:
        return frozenset(self._held.get(worker, ()))

    def workers(self) -> list[str]:
        return sorted(self._held)

    def active_under(self, limit_key: str) -> int:
        """How many active jobs count against a concurrency key."""
        return len(self._limited.get(limit_key, ()))

    def newest_of_cron(self, name: str) -> Entry | None:
        """The newest job that a cron created, for its overlap policy."""
        kept = self._crons.get(name)
        return None if kept is None else self._entries.get(kept[1])

    def listed(
        self, state: str, queue: str | None = None, *, cursor: str = "", limit: int = 50
    ) -> tuple[list[Entry], str]:
        """Jobs in a state, newest in it first, and the cursor to go on with (empty: the end)."""
        shelves = [s for (q, st), s in self._listed.items() if st == state and queue in (None, q)]
        return self._page(shelves, cursor, limit)

    def listed_many(
        self,
        states: Iterable[str],
        queue: str | None = None,
        *,
        cursor: str = "",
        limit: int = 50,
        skip: int = 0,
        wanted: Callable[[Entry], bool] | None = None,
    ) -> tuple[list[Entry], str]:
        """As `listed`, for several states at once."""
        chosen = set(states)
        shelves = [s for (q, st), s in self._listed.items() if st in chosen and queue in (None, q)]
        return self._page(shelves, cursor, limit, wanted, skip)

    def count_of(
        self,
        states: Iterable[str],
        queue: str | None = None,
        wanted: Callable[[Entry], bool] | None = None,
    ) -> int:
        """How many jobs are in these states; exact, and at once unless they must be looked at."""
        chosen = set(states)
        shelves = [s for (q, st), s in self._listed.items() if st in chosen and queue in (None, q)]
        if wanted is None:
            return sum(len(shelf) for shelf in shelves)
        return sum(wanted(self._entries[job_id]) for shelf in shelves for _, job_id in shelf)

    def waiting_under(self, limit_key: str) -> int:
        """How many available jobs stand in line for a limit."""
        return self._in_line.get(limit_key, 0)

    def oldest(self, queue: str, state: str, limit: int) -> list[str]:
        """Jobs that have been in a state for longest."""
        shelf = self._listed.get((queue, state))
        return [] if shelf is None else [key[1] for key in islice(shelf, limit)]

    def dead_letters(
        self,
        *,
        cursor: str = "",
        limit: int = 50,
        skip: int = 0,
        wanted: Callable[[Entry], bool] | None = None,
    ) -> tuple[list[Entry], str]:
        """Dead letters, newest first."""
        return self._page([self._dead], cursor, limit, wanted, skip)

    def all_dead(self) -> Iterator[Entry]:
        """Every dead letter, newest first; change nothing meanwhile."""
        return (self._entries[job_id] for _, job_id in self._dead.before())

    @property
    def dead_letter_count(self) -> int:
        return len(self._dead)

    def _page(
        self,
        shelves: list[_Listed],
        cursor: str,
        limit: int,
        wanted: Callable[[Entry], bool] | None = None,
        skip: int = 0,
    ) -> tuple[list[Entry], str]:
        start = _place(cursor)
        keys = merge(*(shelf.before(start) for shelf in shelves), reverse=True)
        entries = (self._entries[job_id] for _, job_id in keys)
        chosen = entries if wanted is None else filter(wanted, entries)
        found = list(islice(chosen, skip, skip + limit + 1))
        if len(found) <= limit:
            return found, ""
        found.pop()
        return found, f"{found[-1].stamp_ms}:{found[-1].id}"

    # Books ----------------------------------------------------------------------------

    def _is_visible(self, record: Record) -> bool:
        return not record.staged and (not record.txn or record.txn in self._committed)

    def _ready_shelf(self, queue: str) -> _Ready:
        shelf = self._ready.get(queue)
        if shelf is None:
            shelf = self._ready[queue] = Shelf()
        return shelf

    def _put_in(self, entry: Entry) -> None:
        if not entry.visible:
            return
        queue, state = entry.queue, entry.state
        counts = self._counts.get(queue)
        if counts is None:
            counts = self._counts[queue] = dict.fromkeys(STATES, 0)
        counts[state] += 1
        if state == "available":
            self._ready_shelf(queue).add(entry.ready_key)
        shelf = self._listed.get((queue, state))
        if shelf is None:
            shelf = self._listed[queue, state] = Shelf()
        shelf.add((entry.stamp_ms, entry.id))
        if entry.due_ms:
            self._due.add((entry.due_ms, entry.id))
        self._put_in_rare(entry)

    def _put_in_rare(self, entry: Entry) -> None:
        if entry.dead_letter:
            self._dead.add((entry.stamp_ms, entry.id))
        if entry.worker:
            self._held[intern(entry.worker)].add(entry.id)
        if entry.limit_key:
            self._count_limited(entry, 1)
        if entry.unique_key:
            kept = self._unique.get(entry.unique_key, ())
            self._unique[entry.unique_key] = (*kept, entry.id)
        if entry.txn:
            self._carrying[entry.txn].add(entry.id)
        if entry.workflow:
            self.tally.add(entry)
        if entry.cron:
            newest = self._crons.get(entry.cron)
            if newest is None or newest < (entry.created_ms, entry.id):
                self._crons[entry.cron] = (entry.created_ms, entry.id)

    def _take_out(self, entry: Entry) -> None:
        if not entry.visible:
            _discard(self._waiting, entry.txn, entry.id)
            return
        queue, state = entry.queue, entry.state
        counts = self._counts[queue]
        counts[state] -= 1
        if state == "available":
            self._ready[queue].remove(entry.ready_key)
        shelf = self._listed[queue, state]
        shelf.remove((entry.stamp_ms, entry.id))
        if not shelf:
            del self._listed[queue, state]
        if entry.due_ms:
            self._due.remove((entry.due_ms, entry.id))
        self._take_out_rare(entry)

    def _take_out_rare(self, entry: Entry) -> None:
        if entry.dead_letter:
            self._dead.remove((entry.stamp_ms, entry.id))
        if entry.worker:
            _discard(self._held, entry.worker, entry.id)
        if entry.limit_key:
            self._count_limited(entry, -1)
        if entry.unique_key:
            kept = tuple(i for i in self._unique[entry.unique_key] if i != entry.id)
            if kept:
                self._unique[entry.unique_key] = kept
            else:
                del self._unique[entry.unique_key]
        if entry.txn:
            _discard(self._carrying, entry.txn, entry.id)
        if entry.workflow:
            self.tally.remove(entry)

    def _count_limited(self, entry: Entry, step: int) -> None:
        key = entry.limit_key
        if entry.state == "available":
            self._in_line[key] = self._in_line.get(key, 0) + step
            if not self._in_line[key]:
                del self._in_line[key]
        elif entry.state == "active" and step > 0:
            self._limited[key].add(entry.id)
        elif entry.state == "active":
            _discard(self._limited, key, entry.id)


def _discard(sets: dict[str, set[str]], key: str, job_id: str) -> None:
    ids = sets.get(key)
    if ids is not None:
        ids.discard(job_id)
        if not ids:
            del sets[key]


def _place(cursor: str) -> tuple[int, str] | None:
    """The key a cursor stands for; a cursor that cannot be read starts at the newest."""
    stamp, _, job_id = cursor.partition(":")
    return (int(stamp), job_id) if stamp.isdigit() else None
