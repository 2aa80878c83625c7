"""Leases: how long a worker may hold a piece of work before others may have it back.

A lease is a promise with a deadline. ``fence`` is random per hand-out, so that a late
holder is told apart from the present one even when counters or revisions repeat.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

__all__ = ["Lease", "Proof"]


class Proof(StrEnum):
    """How a holder knows that it still holds: told by the store, or inferred from its own clock."""

    CONFIRMED = "confirmed"
    INFERRED = "inferred"


@dataclass(frozen=True, slots=True)
class Lease:
    holder: str
    fence: str
    term: timedelta
    until: datetime | None = None
    proof: Proof = Proof.INFERRED
    renew_every: timedelta | None = None

    def lapsed(self, now: datetime) -> bool:
        return self.until is not None and now >= self.until

    def renewed(self, now: datetime) -> Lease:
        return replace(self, until=now + self.term)

    @property
    def beat(self) -> timedelta:
        """How often to renew: as agreed, else so that there are three chances within one term."""
        return self.renew_every or self.term / 3
