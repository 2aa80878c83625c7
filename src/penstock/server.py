"""The job server: the HTTP faces of one process, served until a signal says stop.

Any number of such processes may stand behind one address. When one is told to stop it says so
at ``/ready`` first, answers what it has, ends its streams, and only then lets go of its broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core.errors import ConfigError, UnknownName
from penstock.web.auth import Role, Tokens, check_bind
from penstock.web.mounts import Mounts
from penstock.web.server import HttpServer, parse_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.hall import Hall
    from penstock.protocols.ojs.http.face import OjsFace
    from penstock.runtime.signals import StopSignals
    from penstock.settings import HttpSettings, Settings

__all__ = ["FACES", "serve_http", "tokens_of"]

_log = logging.getLogger("penstock.http")

FACES: Final = ("ojs",)
"""Protocols with an HTTP face of their own."""


async def serve_http(
    settings: Settings,
    protocols: Sequence[str],
    hall: Hall,
    *,
    shared: bool = False,
    ready: Callable[[str], None] | None = None,
) -> int:
    """Serve the faces of ``protocols`` until SIGTERM or Ctrl-C; the exit code of the process.

    ``shared``: other processes serve the same port, and the system spreads the clients.
    """
    from penstock.runtime.options import ExitCode
    from penstock.runtime.signals import StopSignals

    stop = asyncio.Event()
    with StopSignals() as signals:
        async with AsyncExitStack() as stack:
            started = await signals.unless_heard(_started(settings, protocols, hall, stack, shared))
            if started is None:
                return ExitCode.CLEAN
            server, faces = started
            signals.tell(lambda _number: stop.set())
            if ready is not None:
                ready(server.url)
            await stop.wait()
            for face in faces:
                face.leave()
            await _linger(settings.http.linger, signals)
            _log.info("stopping: no more requests are taken")
    return ExitCode.CLEAN


async def _started(
    settings: Settings, protocols: Sequence[str], hall: Hall, stack: AsyncExitStack, shared: bool
) -> tuple[HttpServer, list[OjsFace]]:
    tokens = tokens_of(settings.http)
    host, port = parse_address(settings.http.bind)
    check_bind(host, tokens)  # before anything is started for it
    faces = [await _face(protocol, settings, hall, stack) for protocol in protocols]
    mounts = Mounts()
    for face in faces:
        mounts.mount("/", face)
    cert, key = settings.http.tls_cert, settings.http.tls_key
    if (cert is None) is not (key is None):
        raise ConfigError("https needs both a certificate and its key", remedy="set http.tls_key")
    server = HttpServer(
        mounts,
        host=host,
        port=port,
        tokens=tokens,
        shared=shared,
        max_bytes=settings.ojs.limits.max_body_bytes,
        tls_cert=Path(cert) if cert else None,
        tls_key=Path(key) if key else None,
    )
    await stack.enter_async_context(server)
    return server, faces


async def _linger(length: timedelta, signals: StopSignals) -> None:
    """Go on answering for a while, so that whoever spreads the clients sees ``/ready`` say no;
    a second signal does not wait."""
    again = asyncio.Event()
    signals.tell(lambda _number: again.set())
    with suppress(TimeoutError):
        async with asyncio.timeout(length.total_seconds()):
            await again.wait()


async def _face(protocol: str, settings: Settings, hall: Hall, stack: AsyncExitStack) -> OjsFace:
    if protocol != "ojs":
        raise UnknownName("HTTP face", protocol, list(FACES))
    from penstock.protocols.ojs.engine import Engine
    from penstock.protocols.ojs.http.serving import open_face

    options = settings.ojs
    engine = await Engine.open(await hall.link(), options, services=options.services)
    await stack.enter_async_context(engine)
    opened = open_face(engine, tokens_of(settings.http), checking=settings.http.schemas)
    return await stack.enter_async_context(opened)


def tokens_of(http: HttpSettings) -> Tokens:
    """Who may do what, as the settings say."""
    given = {
        http.view_token: Role.VIEW,
        http.operate_token: Role.OPERATE,
        http.token: Role.ADMIN,
    }
    return Tokens({token: role for token, role in given.items() if token})
