"""The jobs that are sent to OmniQ queues, and what must become of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.protocols.omniq.store import Draft

__all__ = ["KINDS", "Kind", "Sent", "sent_of"]

LEASE_MS = 4_000  # short, so that an audience sees the jobs of a dead worker come back
CUSTOMERS = 6


@dataclass(frozen=True, slots=True)
class Kind:
    """One queue, how much of it is sent, and its only right outcome."""

    queue: str
    story: str
    count: int
    outcome: str
    body: Callable[[int], dict[str, Any]]
    attempts: int = 5
    grouped: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """One job that was sent."""

    kind: Kind
    job_id: str
    body: dict[str, Any]

    @property
    def draft(self) -> Draft:
        return Draft(
            payload=self.body,
            job_id=self.job_id,
            max_attempts=self.kind.attempts,
            timeout_ms=LEASE_MS,
            backoff_ms=200,
            gid=self.body["customer"] if self.kind.grouped else None,
            group_limit=1 if self.kind.grouped else None,
        )


KINDS = (
    Kind("thumbnail", "fast", 240, "succeeded", lambda item: {"item": item}),
    Kind(
        "charge",
        "fails, then works",
        40,
        "succeeded",
        lambda item: {"item": item, "fails": 1 + item % 2},
    ),
    Kind("refund", "is rejected", 20, "failed", lambda item: {"item": item, "days_ago": 31}),
    Kind("notify", "fails every time", 10, "failed", lambda item: {"item": item}, attempts=2),
    Kind("transcode", "slow, in threads", 20, "succeeded", lambda item: {"item": item}),
    Kind("backup", "long, checkpoints", 12, "succeeded", lambda item: {"item": item}),
    Kind(
        "parcel",
        "one at a time each",
        120,
        "succeeded",
        lambda item: {"item": item, "customer": f"customer-{item % CUSTOMERS}"},
        grouped=True,
    ),
)


def sent_of(scale: float) -> list[Sent]:
    """What to send: at least a few of each kind."""
    return [
        Sent(kind, f"{kind.queue}-{item:04}", kind.body(item))
        for kind in KINDS
        for item in range(max(4, round(kind.count * scale)))
    ]
