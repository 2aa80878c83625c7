"""The HTTP server: granian, in this process and on this event loop.

``start`` returns when the port answers, ``stop`` when the last request has been answered.
Granian shares a port with whoever asks (SO_REUSEPORT), so two servers could split their
clients unnoticed; unless ``shared`` is set the port is tried first, and a busy one is an error.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from penstock.core.errors import ConfigError, Problem
from penstock.web.auth import Tokens, check_bind
from penstock.web.limits import DEFAULT_MAX_BYTES
from penstock.web.message import Face
from penstock.web.rsgi import RsgiApp

__all__ = ["HttpServer", "parse_address"]

_log = logging.getLogger("penstock.http")
_START_WITHIN_S = 20.0
_STOP_WITHIN_S = 15.0


class HttpServer:
    """One face (or `Mounts` of many) on one address. ``port=0`` takes a free one; see `url`."""

    def __init__(
        self,
        face: Face,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tokens: Tokens | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        shared: bool = False,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
    ) -> None:
        check_bind(host, tokens or Tokens())
        self.host = host
        self.port = port
        self._app = RsgiApp(face, max_bytes=max_bytes)
        self._shared = shared
        self._tls = (tls_cert, tls_key)
        self._held: socket.socket | None = None
        self._server: Any = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._tls[0] else 'http'}://{host}:{self.port}"

    async def __aenter__(self) -> HttpServer:
        await self.start()
        return self

    async def __aexit__(self, *exit_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, and return once connections are accepted. Raises `Problem` for a busy port."""
        if self._serving is not None:
            return
        self._held = self._reserve()
        self.port = self._held.getsockname()[1]
        self._server = self._granian()
        self._serving = asyncio.create_task(_quietly(self._server.serve()), name="http:serve")
        try:
            await asyncio.wait_for(self._answers(), _START_WITHIN_S)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Accept no more, answer what is under way, end. Safe to repeat."""
        serving, self._serving = self._serving, None
        if serving is not None:
            self._app.hang_up()
            self._server.stop()
            done, _ = await asyncio.wait([serving], timeout=_STOP_WITHIN_S)
            if not done:
                _log.warning("the HTTP server did not stop in time")
                serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        if self._held is not None:
            self._held.close()
            self._held = None

    def _reserve(self) -> socket.socket:
        """A bound socket that does not listen: it keeps the port ours while granian opens it."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        if not self._shared:
            with socket.socket(family, socket.SOCK_STREAM) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._bind(trial)
        held = socket.socket(family, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._bind(held)
        return held

    def _bind(self, one: socket.socket) -> None:
        try:
            one.bind((self.host, self.port))
        except OSError as error:
            one.close()
            raise Problem(
                f"{self.host}:{self.port} cannot be served: {error.strerror}",
                code="http.bind",
                remedy="choose another address with --http HOST:PORT, or stop who uses this one.",
            ) from error

    def _granian(self) -> Any:
        try:
            from granian.constants import Interfaces
            from granian.server.embed import Server
        except ImportError as error:
            raise Problem(
                "the HTTP server is not installed",
                code="http.extra",
                remedy="pip install 'penstock[server]'",
            ) from error
        logging.getLogger("_granian").setLevel(logging.ERROR)  # it announces itself as experimental
        cert, key = self._tls
        return Server(
            self._app,
            address=self.host,
            port=self.port,
            interface=Interfaces.RSGI,
            log_enabled=False,
            backlog=1024,
            backpressure=4096,
            ssl_cert=cert,
            ssl_key=key,
        )

    async def _answers(self) -> None:
        while True:
            assert self._serving is not None  # start() made it
            if self._serving.done():
                raise Problem("the HTTP server ended at start", code="http.start")
            try:
                _, writer = await asyncio.open_connection(self.host, self.port)
            except OSError:
                await asyncio.sleep(0.005)
                continue
            writer.close()
            return


def parse_address(text: str) -> tuple[str, int]:
    """``HOST:PORT``, ``:PORT`` or ``PORT`` as host and port; loopback unless a host is named.

    >>> parse_address("8080")
    ('127.0.0.1', 8080)
    """
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ConfigError(
            f"{text!r} is not an address", remedy="write HOST:PORT, as 127.0.0.1:8080"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


async def _quietly(serving: Awaitable[None]) -> None:
    try:
        await serving
    except SystemExit as error:  # granian's way to refuse
        raise Problem(
            f"the HTTP server refused to start ({error.code})", code="http.start"
        ) from None
