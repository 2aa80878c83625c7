"""Where a program is to die: the test's half of `penstock.core.points`.

A window is written where it is used, as a value that also serves as the test's id:
``KillPoint("natq.after_final_put", passage=3)`` reads ``natq.after_final_put:3``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from penstock.core.points import VARIABLE, Strike

__all__ = ["KillPoint", "RandomKills", "Window"]


@dataclass(frozen=True, slots=True)
class KillPoint:
    """SIGKILL (or SIGSTOP with ``freeze``) at the ``passage``-th time a named point is reached."""

    name: str
    passage: int = 1
    freeze: bool = False

    @property
    def env(self) -> Mapping[str, str]:
        """What the child's environment needs in order to die there."""
        strike = Strike(self.name, self.passage, "STOP" if self.freeze else "KILL")
        return {VARIABLE: str(strike)}

    def __str__(self) -> str:
        return f"{self.name}:{self.passage}{':freeze' if self.freeze else ''}"


@dataclass(frozen=True, slots=True)
class RandomKills:
    """``kills`` deaths, each after a random life between ``shortest`` and ``longest`` seconds."""

    kills: int = 3
    shortest: float = 0.05
    longest: float = 0.8

    def lives(self, dice: Random) -> list[float]:
        """How long each doomed process may live; the same dice give the same lives."""
        return [dice.uniform(self.shortest, self.longest) for _ in range(self.kills)]

    def __str__(self) -> str:
        return f"random:{self.kills}"


Window = KillPoint | RandomKills
