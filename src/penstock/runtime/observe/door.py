"""The health door: a small HTTP face of one worker, for probes and for Prometheus.

    GET /health    200 while the process is worth keeping, also while it drains; else 503
    GET /ready     200 while it takes work; else 503, with the reasons
    GET /metrics   Prometheus text

It answers from the worker's own event loop: a loop that somebody blocks does not answer,
which is what a liveness probe wants to know. From other machines only the status can be
asked, unless a token is set: reasons and metrics name tasks and queues.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.core.errors import ConfigError, PenstockError, Problem

__all__ = ["Check", "HealthDoor", "parse_address"]

_log = logging.getLogger("penstock.worker")

_LIMIT_BYTES = 8 * 1024
_WITHIN_S = 5.0
_MOST = 32
_MEANING = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    501: "Not Implemented",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Check:
    """Whether all is well, and if not, why."""

    ok: bool
    reasons: tuple[str, ...] = ()


class HealthDoor:
    """Listens from ``start`` to ``stop``; both are safe to repeat."""

    def __init__(
        self,
        address: str,
        *,
        health: Callable[[], Check],
        ready: Callable[[], Check],
        metrics: Callable[[], bytes],
        token: str | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.host, self.port = parse_address(address)
        self._checks = {"/health": health, "/ready": ready}
        self._metrics = metrics
        self._token = token
        self._open = token is None and ipaddress.ip_address(self.host).is_loopback
        self._facts = dict(facts or {})
        self._server: asyncio.Server | None = None
        self._askers: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Listen. Raises `Problem` when the address cannot be had."""
        if self._server is not None:
            return
        try:
            self._server = await asyncio.start_server(
                self._serve, self.host, self.port, limit=_LIMIT_BYTES
            )
        except OSError as error:
            raise Problem(
                f"the health door cannot listen on {self.host}:{self.port}: {error.strerror}",
                code="worker.health_port",
                remedy="give another address with --health, or stop what listens there",
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        _log.info("health at %s", self.url)

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for asker in self._askers:
                asker.cancel()
            await asyncio.gather(*self._askers, return_exceptions=True)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    # One request a connection ---------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asker = asyncio.current_task()
        assert asker is not None
        try:
            if (
                len(self._askers) < _MOST
            ):  # the rest is hung up on: nobody may hold a worker's files
                self._askers.add(asker)
                async with asyncio.timeout(_WITHIN_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head))
                    await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError):
            pass  # whoever asks badly or goes away gets no answer
        finally:
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            self._askers.discard(asker)

    def _answer(self, head: bytes) -> bytes:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3:
            return _said(400, {"error": "not an HTTP request"})
        method, path = words[0], words[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _said(405, {"error": f"{method[:16]} is not answered here"})
        said = self._said_at(path, trusted=self._open or self._may(lines[1:]))
        return said if method == "GET" else said[: said.index(b"\r\n\r\n") + 4]

    def _said_at(self, path: str, *, trusted: bool) -> bytes:
        check = self._checks.get(path)
        if check is not None:
            found = check()
            status, word = (200, "ok") if found.ok else (503, "unavailable")
            more = {"reasons": found.reasons, **self._facts} if trusted else {}
            return _said(status, {"status": word, **more})
        if path != "/metrics":
            return _said(404, {"error": "there is /health, /ready and /metrics"})
        if not trusted:
            return _said(401, {"error": "metrics need the token of worker.health_token"})
        try:
            return _http(200, "text/plain; version=0.0.4; charset=utf-8", self._metrics())
        except PenstockError as error:
            return _said(501, {"error": error.message, "remedy": error.remedy})

    def _may(self, headers: list[str]) -> bool:
        if self._token is None:
            return False
        for line in headers:
            name, _, value = line.partition(":")
            scheme, _, given = value.strip().partition(" ")
            if name.lower() == "authorization" and scheme.lower() == "bearer":
                return hmac.compare_digest(given.strip().encode(), self._token.encode())
        return False


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``8081`` (this machine only), ``0.0.0.0:8081`` or ``[::1]:8081``."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    try:
        number = int(port)
        ipaddress.ip_address(host)
    except ValueError:
        number = -1
    if not 0 <= number <= 65535:
        raise ConfigError(
            f"{text!r} is no address for the health door",
            remedy="give a port (8081) or an IP address and a port (0.0.0.0:8081)",
        )
    return host, number


def _said(status: int, body: Mapping[str, Any]) -> bytes:
    return _http(status, "application/json", msgspec.json.encode(body))


def _http(status: int, kind: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_MEANING[status]}\r\n"
        f"Content-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
