"""The administrative port: what console, command line and admin HTTP may ask of any protocol.

Each room's ``admin.py`` answers it from its own records. Lists are bounded; a cursor
goes on where one ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct

from penstock.core.invocation import ProtocolName

__all__ = ["Admin", "Done", "Page", "QueueView", "WorkView"]


class QueueView(Struct, frozen=True, kw_only=True):
    """A place where work waits. A count that a protocol cannot tell is ``None``."""

    protocol: ProtocolName
    name: str
    waiting: int | None = None
    running: int | None = None
    delayed: int | None = None
    failed: int | None = None
    paused: bool = False
    detail: dict[str, Any] = {}


class WorkView(Struct, frozen=True, kw_only=True):
    """One piece of work as an operator sees it; ``state`` is in the protocol's own words."""

    protocol: ProtocolName
    name: str
    work_id: str
    state: str
    queue: str = ""
    attempt: int | None = None
    at: datetime | None = None
    result: Any = None
    error: str = ""
    detail: dict[str, Any] = {}


class Page(Struct, frozen=True):
    """Up to a limit of views, and where to go on (empty: that was all)."""

    items: tuple[WorkView, ...]
    cursor: str = ""


class Done(Struct, frozen=True):
    """What an action did: how many pieces of work changed, those that could not, and a remark."""

    changed: int
    refused: tuple[str, ...] = ()
    note: str = ""


class Admin(Protocol):
    protocol: ProtocolName
    actions: Sequence[str]

    async def queues(self) -> Sequence[QueueView]: ...
    async def find(
        self, *, name: str = "", state: str = "", limit: int = 100, cursor: str = ""
    ) -> Page: ...
    async def show(self, name: str, work_id: str) -> WorkView | None: ...
    async def act(self, action: str, name: str, work_ids: Sequence[str]) -> Done: ...
    def watch(self, *, name: str = "") -> AsyncIterator[WorkView]: ...
