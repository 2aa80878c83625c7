"""What the façade and a protocol room know of each other, so that neither imports the other.

Each room has a module ``serving`` with two doors: `Serve` and `OpenAdmin`. What they need of
the process around them they ask of the `Hall`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.core.admin import Admin
from penstock.core.delivery import RequestSource, Source
from penstock.core.task import Task

__all__ = ["Hall", "OpenAdmin", "Serve", "Served"]


class Hall(Protocol):
    """What the rooms of one process share."""

    @property
    def stack(self) -> AsyncExitStack:
        """Where a room leaves what is to be closed at the end."""
        ...

    @property
    def worker_id(self) -> str: ...

    def section(self, name: str) -> Any:
        """A part of the settings by its name."""
        ...

    def says(self, address: str) -> None:
        """Tell where the room is connected to."""
        ...

    async def link(self) -> Any:
        """The NATS connection that all rooms share, opened when first asked for."""
        ...


@dataclass(frozen=True, slots=True)
class Served:
    """The places where a protocol's work comes from."""

    sources: Sequence[Source] = ()
    requests: Sequence[RequestSource] = ()


Serve = Callable[[Hall, Iterable[Task]], Awaitable[Served]]
OpenAdmin = Callable[[Hall], Awaitable[Admin]]
