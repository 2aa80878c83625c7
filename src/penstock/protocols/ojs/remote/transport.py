"""One request and its answer, tried again where that is safe. Stands on aiohttp."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from penstock.core.errors import ConfigError
from penstock.protocols.ojs.remote.errors import ErrorBody, OjsError, ServerAway

__all__ = ["Transport"]

_JSON: Final = "application/openjobspec+json"
_WAITS: Final = frozenset((429, 502, 503, 504))
_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 5.0


class _Failed(msgspec.Struct):
    error: ErrorBody = ErrorBody()


_errors: Final = msgspec.json.Decoder(_Failed)
_encode: Final = msgspec.json.Encoder().encode


class Transport:
    """Talks to one server. ``tries``: how often a request is sent that may be sent again."""

    def __init__(
        self, url: str, *, token: str = "", tenant: str = "", timeout: float = 30.0, tries: int = 5
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(
                f"{url!r} is not the address of a job server",
                remedy="give one like http://127.0.0.1:8080",
            )
        self._base = url.rstrip("/")
        self._headers = {"accept": _JSON, "content-type": _JSON}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        if tenant:
            self._headers["x-ojs-tenant"] = tenant
        self._timeout = timeout
        self._tries = tries
        self._session: Any = None

    async def __aenter__(self) -> Transport:
        try:
            import aiohttp
        except ImportError as error:
            raise ConfigError(
                "talking to a job server over HTTP needs aiohttp",
                remedy="pip install 'penstock[http]'",
            ) from error
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers=self._headers,
            auto_decompress=True,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        again: bool = True,
        timeout: float | None = None,
    ) -> bytes:
        """The body of the answer. Raises `OjsError` for a refusal, `ServerAway` for none.

        ``again``: the request may be sent twice without harm, so lost answers and passing
        faults are met by trying again.
        """
        data = None if body is None else _encode(body)
        tries = self._tries if again else 1
        for attempt in range(1, tries + 1):
            try:
                status, answer, wait = await self._once(method, path, data, query, timeout)
            except ServerAway:
                if attempt == tries:
                    raise
                wait = None
            else:
                if status < 400:
                    return answer
                if status not in _WAITS or attempt == tries:
                    raise OjsError(status, _error_in(answer, status))
            await asyncio.sleep(_pause(attempt, wait))
        raise AssertionError("the last try returns or raises")

    async def _once(
        self,
        method: str,
        path: str,
        data: bytes | None,
        query: Mapping[str, str] | None,
        timeout: float | None,
    ) -> tuple[int, bytes, float | None]:
        import aiohttp

        total = aiohttp.ClientTimeout(total=timeout or self._timeout)
        url = self._base + path
        try:
            async with self._session.request(
                method, url, data=data, params=query, timeout=total
            ) as answer:
                wait = answer.headers.get("retry-after", "")
                body = await answer.read()
                return answer.status, body, float(wait) if wait.isdigit() else None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            raise ServerAway(f"no answer from {self._base}: {why}") from error


def _error_in(answer: bytes, status: int) -> ErrorBody:
    """What the answer says; another program may stand in front of the server and say anything."""
    try:
        return _errors.decode(answer).error
    except msgspec.DecodeError:
        return ErrorBody(message=f"the server answered {status}, and not in JSON")


def _pause(attempt: int, wait: float | None) -> float:
    if wait is not None:
        return min(wait, 60.0)
    longest = min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _MAX_PAUSE_S)
    return random.uniform(longest / 2, longest)
