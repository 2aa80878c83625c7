"""The hall in front of the protocol rooms: which there are, and what those of one process share.

Part of the façade: rooms are imported when somebody asks for them, and a NATS server is
reached only when a room, or publishing events, needs one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from penstock.core.errors import UnknownName

if TYPE_CHECKING:
    from penstock.broker.link import Link
    from penstock.core.admin import Admin
    from penstock.core.rooms import OpenAdmin, Serve
    from penstock.settings import Settings

__all__ = [
    "ROOMS",
    "Broker",
    "Hall",
    "OpenLink",
    "Room",
    "brokers_of",
    "check_protocols",
    "door",
    "open_admin",
]

OpenLink = Callable[["Settings"], AbstractAsyncContextManager["Link"]]

Broker = Literal["nats", "redis"]


class Room(NamedTuple):
    """Where the doors ``serve`` and ``open_admin`` are, and the broker a room stands on."""

    module: str
    broker: Broker


ROOMS: Final = {
    "natq": Room("penstock.protocols.natq.serving", "nats"),
    "ojs": Room("penstock.protocols.ojs.serving", "nats"),
    "omniq": Room("penstock.protocols.omniq.serving", "redis"),
}


class Hall:
    """Made for one process and left with its ``stack``."""

    def __init__(
        self, settings: Settings, stack: AsyncExitStack, open_link: OpenLink, worker_id: str = ""
    ) -> None:
        self.stack = stack
        self.worker_id = worker_id
        self.addresses: list[str] = []
        self._settings = settings
        self._open_link = open_link
        self._link: Link | None = None

    def section(self, name: str) -> Any:
        return getattr(self._settings, name)

    def says(self, address: str) -> None:
        if address and address not in self.addresses:
            self.addresses.append(address)

    @property
    def has_nats(self) -> bool:
        """Whether NATS is at hand without starting a server only for that."""
        return self._link is not None or bool(self._settings.nats.url)

    async def link(self) -> Link:
        if self._link is None:
            self._link = await self.stack.enter_async_context(self._open_link(self._settings))
            self.says(self._link.options.servers[0])
        return self._link


def door(protocol: str) -> tuple[Serve, OpenAdmin]:
    """The doors of a room. Raises `UnknownName`."""
    check_protocols([protocol])
    module = import_module(ROOMS[protocol].module)
    return module.serve, module.open_admin


def brokers_of(protocols: Sequence[str]) -> list[Broker]:
    """The brokers that these protocols need, each once. Raises `UnknownName`."""
    check_protocols(protocols)
    return list(dict.fromkeys(ROOMS[protocol].broker for protocol in protocols))


def check_protocols(protocols: Sequence[str]) -> None:
    """Refuse a protocol that has no room, with the nearest that has."""
    for protocol in protocols:
        if protocol not in ROOMS:
            raise UnknownName("protocol", protocol, list(ROOMS))


@asynccontextmanager
async def open_admin(
    protocol: str, settings: Settings, open_link: OpenLink
) -> AsyncIterator[Admin]:
    """The operator's door of one protocol, connected."""
    _, enter = door(protocol)
    async with AsyncExitStack() as stack:
        yield await enter(Hall(settings, stack, open_link))
