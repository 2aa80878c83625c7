"""Servers to put under test: instances on one NATS, each with its own link and port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.http.serving import open_face
from penstock.protocols.ojs.options import OjsOptions
from penstock.web.server import HttpServer

__all__ = ["instances"]


@asynccontextmanager
async def instances(count: int) -> AsyncIterator[list[str]]:
    """The addresses of ``count`` instances that should answer as one."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(EmbeddedNats())
        urls = []
        for _ in range(count):
            link = await Link.open(NatsOptions.from_url(nats.url))
            stack.push_async_callback(link.close, drain=False)
            engine = await Engine.open(link, OjsOptions(conformance=True))
            await stack.enter_async_context(engine)
            face = await stack.enter_async_context(open_face(engine))
            urls.append((await stack.enter_async_context(HttpServer(face))).url)
        yield urls
