"""Which handler answers which path, who may ask, and what goes in and out.

Each module of handlers fills one `Routes`. The face looks requests up in the sum of them, and
the OpenAPI document is written from the same entries, so neither can say what the other
does not do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.protocols.ojs.http.exchange import Exchange
from penstock.web.auth import Role
from penstock.web.message import Response, Streaming

__all__ = ["Handler", "Route", "Routes"]

Handler = Callable[[Exchange], Awaitable[Response | Streaming]]
H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path. ``role`` of `None`: open to everybody. ``takes`` and ``gives``
    are names of schemas; ``statuses`` are the refusals that this operation has of its own."""

    method: str
    path: str
    handler: Handler
    summary: str
    role: Role | None
    takes: str = ""
    gives: str = ""
    success: tuple[int, ...] = (200,)
    statuses: tuple[int, ...] = ()
    query: tuple[str, ...] = ()
    media: str = ""


@dataclass(slots=True)
class Routes:
    """The routes of one group, in the order they were written."""

    tag: str
    routes: list[Route] = field(default_factory=list)

    def on(
        self,
        method: str,
        *paths: str,
        role: Role | None = Role.OPERATE,
        takes: str = "",
        gives: str = "",
        success: tuple[int, ...] = (200,),
        statuses: tuple[int, ...] = (),
        query: tuple[str, ...] = (),
        media: str = "",
    ) -> Callable[[H], H]:
        """Put a handler at one path or at several that mean the same. Its docstring says what
        it is for, in the OpenAPI document too."""

        def entered(handler: H) -> H:
            summary = (handler.__doc__ or "").strip().partition("\n")[0]
            for path in paths:
                self.routes.append(
                    Route(
                        method=method,
                        path=path,
                        handler=handler,
                        summary=summary,
                        role=role,
                        takes=takes,
                        gives=gives,
                        success=success,
                        statuses=statuses,
                        query=query,
                        media=media,
                    )
                )
            return handler

        return entered

    def __iter__(self) -> Iterator[Route]:
        return iter(self.routes)
