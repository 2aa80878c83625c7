"""Tallies: how far each workflow is, counted from its member jobs as they change.

Progress is never written per member; whoever needs it asks here. A member that is replaced
by a newer record is taken off under what it was and added as what it has become.
"""

from __future__ import annotations

from msgspec import Struct

from penstock.protocols.ojs.entry import Entry
from penstock.protocols.ojs.names import TERMINAL

__all__ = ["Standing", "Tally"]


class Standing(Struct):
    """How many members of one workflow there are, are over, and succeeded."""

    jobs: int = 0
    over: int = 0
    succeeded: int = 0


class Tally:
    __slots__ = ("_members", "_standings")

    def __init__(self) -> None:
        self._standings: dict[str, Standing] = {}
        self._members: dict[str, dict[str, str]] = {}

    def add(self, entry: Entry) -> None:
        standing = self._standings.get(entry.workflow)
        if standing is None:
            standing = self._standings[entry.workflow] = Standing()
        _count(standing, entry, 1)
        self._members.setdefault(entry.workflow, {})[entry.workflow_node] = entry.id

    def remove(self, entry: Entry) -> None:
        standing = self._standings[entry.workflow]
        _count(standing, entry, -1)
        self._members[entry.workflow].pop(entry.workflow_node, None)
        if standing.jobs == 0:
            del self._standings[entry.workflow]
            del self._members[entry.workflow]

    def of(self, workflow: str) -> Standing:
        return self._standings.get(workflow) or Standing()

    def members(self, workflow: str) -> dict[str, str]:
        """Job ids of a workflow by the place they fill."""
        return dict(self._members.get(workflow, {}))


def _count(standing: Standing, entry: Entry, step: int) -> None:
    standing.jobs += step
    if entry.state in TERMINAL:
        standing.over += step
        if entry.state == "completed":
            standing.succeeded += step
