"""Requests and responses, as every HTTP face sees them, whatever server carries them.

A request's body has been read, unpacked and bounded before a face sees it. A response is
bytes, or an iterator of bytes that goes out as it comes (server-sent events).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qs

__all__ = ["Face", "HeaderMap", "Headers", "Request", "Response", "Socket", "Streaming"]

Headers = Sequence[tuple[str, str]]


class HeaderMap(Protocol):
    """Header fields by lower-case name. A dict is one; so is what granian hands out."""

    def get(self, key: str, default: Any = None, /) -> Any: ...
    def items(self) -> Iterable[tuple[str, str]]: ...


def _no_headers() -> HeaderMap:
    return dict[str, str]()


async def _never() -> None:
    """The client of a request made by hand does not hang up."""
    import asyncio

    await asyncio.Event().wait()


@dataclass(slots=True, eq=False)
class Request:
    """One request. ``params`` are the decoded parts of the path that its route names;
    ``gone`` returns when the client has hung up."""

    method: str
    path: str
    headers: HeaderMap = field(default_factory=_no_headers)
    body: bytes = b""
    query_string: str = ""
    client: str = ""
    params: dict[str, str] = field(default_factory=dict)
    gone: Callable[[], Awaitable[Any]] = _never
    _query: dict[str, list[str]] | None = None

    def header(self, name: str, default: str = "") -> str:
        """A header field by its lower-case name."""
        value = self.headers.get(name)
        return default if value is None else str(value)

    @property
    def queries(self) -> dict[str, list[str]]:
        """The query string, each name with all its values, in order."""
        if self._query is None:
            self._query = parse_qs(self.query_string, keep_blank_values=True)
        return self._query

    def query(self, name: str, default: str = "") -> str:
        """The first value of a name in the query string."""
        if not self.query_string:
            return default
        return self.queries.get(name, (default,))[0]


@dataclass(slots=True, eq=False)
class Response:
    status: int
    body: bytes = b""
    headers: Headers = ()


@dataclass(slots=True, eq=False)
class Streaming:
    """A response that goes on: ``chunks`` is closed when the client hangs up."""

    chunks: AsyncGenerator[bytes, None]
    status: int = 200
    headers: Headers = ()


class Socket(Protocol):
    """An accepted WebSocket."""

    async def receive(self) -> str | bytes | None:
        """The next message, or ``None`` when the other side has closed."""
        ...

    async def send(self, text: str) -> None:
        """Send a text message. Raises `ConnectionError` when nobody listens any more."""
        ...


class Face(Protocol):
    """One protocol's HTTP: it answers whatever comes, errors included, in its own words."""

    async def answer(self, request: Request) -> Response | Streaming: ...

    def socket(self, request: Request) -> Callable[[Socket], Coroutine[Any, Any, None]] | None:
        """What to do with a WebSocket to this path, or ``None`` to refuse it."""
        ...
