"""Invocations: one piece of work as it was handed out, whatever wire it came over.

A pure value. ``attempt`` counts executions that count (what handlers and budgets see),
``delivery`` counts hand-outs; give-backs and snoozes raise only the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, get_args

from msgspec import Struct

__all__ = ["MISSING", "PROTOCOLS", "Checkpoint", "Invocation", "ProtocolName"]

ProtocolName = Literal["natq", "ojs", "dagnats", "omniq", "meshforge"]
PROTOCOLS: Final[tuple[ProtocolName, ...]] = get_args(ProtocolName)


class _Missing:
    """No input at all, which is not the same as ``null`` on every wire."""

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "MISSING"  # one and the same in every process


MISSING: Final = _Missing()


class Checkpoint(Struct, frozen=True):
    """What a handler saved to go on from; ``iteration`` counts its `Continue`s."""

    value: Any
    iteration: int = 0


class Invocation(Struct, frozen=True, kw_only=True):
    """``body`` is the JSON value to call with: an object binds by keyword, a list by position.

    ``work_id`` stays the same over all attempts (run, job, task or command id);
    ``max_attempts`` is of this piece of work, from the wire where the wire has one.
    """

    protocol: ProtocolName
    task: str
    work_id: str
    body: Any = MISSING
    raw: bytes = b""
    attempt: int = 1
    delivery: int = 1
    max_attempts: int | None = None
    iteration: int = 0
    checkpoint: Checkpoint | None = None
    parent_results: tuple[Any, ...] = ()
    queue: str = ""
    group: str = ""
    enqueued_at: datetime | None = None
    deadline_at: datetime | None = None
    trace: str = ""
    meta: Mapping[str, Any] = {}
    wire: Any = None
