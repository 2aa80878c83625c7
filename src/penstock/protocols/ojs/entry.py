"""Entries: as much of a record as the index keeps, and no more."""

from __future__ import annotations

from sys import intern

from penstock.protocols.ojs.record import Record

__all__ = ["Entry", "entry_of"]


class Entry:
    """One job in the index. ``stamp_ms``: since when it is in its state. Plain slots: a million
    of these are held."""

    __slots__ = (
        "attempt",
        "created_ms",
        "cron",
        "dead_letter",
        "due_ms",
        "id",
        "limit_key",
        "order",
        "priority",
        "queue",
        "revision",
        "stamp_ms",
        "state",
        "tenant",
        "txn",
        "type",
        "unique_key",
        "visible",
        "worker",
        "workflow",
        "workflow_node",
    )

    id: str
    revision: int
    queue: str
    type: str
    state: str
    priority: int
    order: int
    attempt: int
    due_ms: int
    created_ms: int
    stamp_ms: int
    dead_letter: bool
    worker: str
    unique_key: str
    limit_key: str
    tenant: str
    workflow: str
    workflow_node: str
    cron: str
    txn: str
    visible: bool

    @property
    def ready_key(self) -> tuple[int, int, str]:
        """Its place in its queue: high priority first, then the order of enqueueing."""
        return (-self.priority, self.order, self.id)

    def facts(self) -> tuple[object, ...]:
        """All it knows but the revision, for comparison."""
        return tuple(getattr(self, name) for name in self.__slots__ if name != "revision")


def entry_of(record: Record, revision: int, *, visible: bool = True) -> Entry:
    job = record.job
    member = record.member
    entry = Entry()
    entry.id = job.id
    entry.revision = revision
    entry.queue = intern(job.queue)
    entry.type = intern(job.type)
    entry.state = intern(job.state)
    entry.priority = job.priority
    entry.order = record.order
    entry.attempt = job.attempt
    entry.due_ms = record.due_ms
    entry.created_ms = record.created_ms
    entry.stamp_ms = record.tail[-1].at_ms if record.tail else entry.created_ms
    entry.dead_letter = record.dead_letter
    entry.worker = intern(record.held.worker) if record.held is not None else ""
    entry.unique_key = record.unique_key
    entry.limit_key = intern(record.limit.key) if record.limit is not None else ""
    entry.tenant = intern(record.tenant)
    entry.workflow = member.workflow if member is not None else ""
    entry.workflow_node = member.node if member is not None else ""
    entry.cron = intern(member.cron) if member is not None else ""
    entry.txn = record.txn
    entry.visible = visible
    return entry
