"""The port between the runtime and a protocol: all they know of each other.

A `Source` hands out `Delivery`s, never more than it was asked for. A delivery can be
renewed while its handler runs and is settled once. Every answer is a value: a lost
lease (`Gone`), a request to stop (`CancelAsked`), and a write whose answer was lost
(`Unknown`) are things that happen, not surprises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from penstock.core.invocation import Invocation
from penstock.core.lease import Lease
from penstock.core.outcome import Outcome

__all__ = [
    "CancelAsked",
    "Delivery",
    "Facilities",
    "Facility",
    "Gone",
    "Progress",
    "Renewal",
    "Renewed",
    "Request",
    "RequestSource",
    "Settled",
    "SettledKind",
    "Settlement",
    "Source",
    "SourceLost",
    "Unknown",
]


class Facility(StrEnum):
    """Where a protocol keeps something: on its own wire, beside it, or nowhere."""

    NATIVE = "native"
    SIDE = "side"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Facilities:
    """What a protocol can do for a handler; checked and told when a worker starts."""

    delay: Facility = Facility.NATIVE
    checkpoint: Facility = Facility.NONE
    result: Facility = Facility.NATIVE
    progress: Facility = Facility.SIDE
    cancel: Facility = Facility.NONE
    give_back: Facility = Facility.NATIVE
    max_delay: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a handler is: ``done`` of ``total`` (either may be unknown), and a note."""

    done: float | None = None
    total: float | None = None
    note: str = ""


class SettledKind(StrEnum):
    """What became of the work; ``PARKED``: it will not run again (dead letter, failed lane)."""

    SUCCEEDED = "succeeded"
    RETRYING = "retrying"
    PARKED = "parked"
    SNOOZED = "snoozed"
    RETURNED = "returned"
    CONTINUED = "continued"
    CANCELLED = "cancelled"


class Settled(Struct, frozen=True):
    """``dead_lettered``: a copy was kept where an operator can give it another life."""

    kind: SettledKind
    next_at: datetime | None = None
    attempt: int | None = None
    dead_lettered: bool = False


class Gone(Struct, frozen=True):
    """The lease is somebody else's, or the work is over: the write did not happen."""

    reason: str = "the lease is gone"


class Unknown(Struct, frozen=True):
    """A write was sent and its answer lost. It may have happened."""

    reason: str = "no answer"


class Renewed(Struct, frozen=True):
    until: datetime | None = None


class CancelAsked(Struct, frozen=True):
    reason: str = "cancelled"


Renewal = Renewed | CancelAsked | Gone | Unknown
Settlement = Settled | Gone | Unknown


class SourceLost(Exception):
    """The place work comes from is gone for the moment; the loop backs off and asks again."""


@runtime_checkable
class Delivery(Protocol):
    """One hand-out of one piece of work. All methods are called on the loop's thread."""

    @property
    def invocation(self) -> Invocation: ...
    @property
    def lease(self) -> Lease | None: ...

    async def renew(self) -> Renewal:
        """Keep the lease. The one door for lost leases and for cancellation."""
        ...

    async def settle(self, outcome: Outcome) -> Settlement:
        """Write what became of it. Called exactly once; never raises for a broker's answer."""
        ...

    async def save(self, checkpoint: Any) -> None:
        """Keep a checkpoint durably; returns when it is.

        Raises `LeaseLost` when the work is known to be another worker's by now.
        """
        ...

    async def note(self, progress: Progress) -> None:
        """Show progress where the protocol has a place for it; advisory."""
        ...


class Source(Protocol):
    """The pull side. Asked for no more than can start at once."""

    @property
    def name(self) -> str: ...
    @property
    def task(self) -> str:
        """The one task it feeds, or empty for many."""
        ...

    @property
    def facilities(self) -> Facilities: ...

    async def take(self, most: int, wait: timedelta) -> Sequence[Delivery]:
        """Up to ``most`` deliveries; at once if there are any, else after ``wait`` an empty list.

        Raises `SourceLost` when the place is gone (deleted consumer, cut connection).
        """
        ...

    async def waiting(self) -> int | None:
        """How much work waits that nobody holds, or ``None`` where it cannot be told.

        May count too little where an exact count is dear, but is 0 only if none waits.
        """
        ...

    async def stop(self) -> None:
        """Take no more; give back whatever was fetched and not handed out. Safe to repeat."""
        ...


class Request(Protocol):
    """One question that waits for its answer: no lease, no redelivery, always answered."""

    @property
    def invocation(self) -> Invocation: ...

    def answer(self, outcome: Outcome) -> None:
        """Reply, without waiting. Called exactly once; never raises."""
        ...


class RequestSource(Protocol):
    """The push side (natq sync). ``start`` gets the callback that takes each request."""

    @property
    def name(self) -> str: ...

    async def start(self, receive: RequestSink) -> None: ...
    async def drain(self) -> None:
        """Accept no more; return when everything accepted was passed on."""
        ...

    async def stop(self) -> None: ...


class RequestSink(Protocol):
    def __call__(self, request: Request) -> None: ...
