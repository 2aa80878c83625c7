"""What an act is, and what it has to prove."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from examples.demo.show import Show
    from examples.demo.stage import Stage

__all__ = ["Act", "Proof", "Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of work: what was sent, what must have become of it, and what the records say.

    ``again``: how many were handed out once more because a worker went away.
    """

    kind: str
    story: str
    sent: int
    expected: str
    found: str
    again: int = 0

    @property
    def holds(self) -> bool:
        return self.expected == self.found


@dataclass(frozen=True, slots=True)
class Proof:
    """What an act hands back. ``notes`` are facts for people; only ``rows`` are judged."""

    rows: Sequence[Row]
    notes: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        return bool(self.rows) and all(row.holds for row in self.rows)


@dataclass(frozen=True, slots=True)
class Act:
    """A part of the demo. ``play`` gets the stage, the show and a factor for all counts."""

    name: str
    title: str
    play: Callable[[Stage, Show, float], Awaitable[Proof]]
