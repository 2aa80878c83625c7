"""The kinds of work that are sent, and what must become of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.protocols.natq.wire import Output

__all__ = ["KINDS", "Kind", "Sent", "outcome_of", "sent_of"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One task, how much of it is sent, and its only right outcome."""

    task: str
    story: str
    count: int
    outcome: str
    body: Callable[[int], dict[str, Any]]
    buried: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """One job that was sent."""

    kind: Kind
    run_id: str
    body: dict[str, Any]


def _plain(item: int) -> dict[str, Any]:
    return {"item": item}


def _failing(item: int) -> dict[str, Any]:
    return {"item": item, "fails": 1 + item % 2}


def _late(item: int) -> dict[str, Any]:
    return {"item": item, "days_ago": 31 + item}


KINDS = (
    Kind("thumbnail", "fast", 240, "succeeded", _plain),
    Kind("charge", "fails, then works", 60, "succeeded", _failing),
    Kind("refund", "is rejected", 30, "rejected", _late),
    Kind("notify", "fails every time", 10, "failed", _plain, buried=True),
    Kind("checksum", "in its own process", 24, "succeeded", _plain),
    Kind("transcode", "slow, with progress", 30, "succeeded", _plain),
    Kind("backup", "long, checkpoints", 16, "succeeded", _plain),
)


def sent_of(scale: float) -> list[Sent]:
    """What to send: all kinds mixed, so that each of them is under way at any moment."""
    sent = [
        (item / kind.count, Sent(kind, f"{kind.task}-{item:04}", kind.body(item)))
        for kind in KINDS
        for item in range(max(4, round(kind.count * scale)))
    ]
    return [one for _, one in sorted(sent, key=lambda pair: pair[0])]


def outcome_of(sent: Sent, output: Output | None) -> str:
    """What the record says became of a job, in one word."""
    if output is None:
        return "LOST"
    if not output.is_final:
        return "unfinished"
    if output.status >= 500:
        return "failed"
    if output.status >= 300:
        return "rejected"
    data = output.data
    right = isinstance(data, dict) and data.get("item") == sent.body["item"]
    return "succeeded" if right else "WRONG ANSWER"
