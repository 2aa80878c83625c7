"""A scenario: one piece of work, who does it, and what we want to reach.

Values only. A contender is named by ``"module:function"``, so that describing it imports
nothing of it; the function takes a `bench.kit.run.Run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

__all__ = ["Contender", "Goal", "Loop", "Place", "Scenario"]

Loop = Literal["uvloop", "asyncio"]
Place = Literal["nats", "redis", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Who does the work of a scenario.

    ``share``: the part of the scenario's count it does, for those that would take minutes;
    rates and costs are per piece, so they stay comparable. ``packages``: what it needs from
    the registry, installed into an environment of its own (empty: ours is used).
    ``prepare``: its own way to put the work in place, instead of the scenario's. ``place``: where
    it works, if not where the others do.
    """

    name: str
    program: str
    share: float = 1.0
    loop: Loop = "uvloop"
    packages: tuple[str, ...] = ()
    prepare: str | None = None
    place: Place | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def count_of(self, count: int) -> int:
        return max(1, round(count * self.share))


@dataclass(frozen=True, slots=True)
class Goal:
    """``metric`` of ``of``, divided by that of ``against`` if given, compared with a bound.

    A ratio is taken within each round and the median of the rounds counts, so that what
    disturbed a whole round disturbs both sides of it.
    """

    name: str
    metric: str
    of: str
    against: str | None = None
    _: KW_ONLY
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"goal {self.name!r} needs exactly one of at_least and at_most")

    def met(self, value: float) -> bool:
        if self.at_least is not None:
            return value >= self.at_least
        assert self.at_most is not None  # checked at construction
        return value <= self.at_most

    @property
    def bound(self) -> str:
        if self.at_least is not None:
            return f">={self.at_least:.6g}"
        return f"<={self.at_most:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One piece of work for all contenders, in a fresh server each time.

    ``count`` pieces (``quick`` with ``--quick``); ``prepare`` is a ``"module:function"`` that
    puts the work in place, in a process of its own and not measured. ``durability``: what a
    crash or a power cut could lose of what is counted here, printed beside the figures.
    ``columns``: metrics to show besides rate and CPU.
    """

    name: str
    title: str
    count: int
    quick: int
    contenders: tuple[Contender, ...]
    goals: tuple[Goal, ...] = ()
    place: Place = "nats"
    prepare: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "job"
    durability: str = ""
    columns: tuple[str, ...] = ()
    rounds: int = 5
    timeout_s: float = 300.0
