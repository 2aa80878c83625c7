"""A whole server: NATS, an engine, and its face on a port of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.http.serving import open_face
from penstock.web.auth import Role, Tokens
from penstock.web.server import HttpServer


@asynccontextmanager
async def serving(engine: Engine, tokens: Tokens) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        open_face(engine, tokens) as face,
        HttpServer(face, tokens=tokens) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as client,
    ):
        yield client


@pytest.fixture
async def http(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an open server."""
    async with serving(engine, Tokens()) as client:
        yield client


@pytest.fixture
async def guarded(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that wants tokens."""
    tokens = Tokens({"looks": Role.VIEW, "works": Role.OPERATE, "rules": Role.ADMIN})
    async with serving(engine, tokens) as client:
        yield client
