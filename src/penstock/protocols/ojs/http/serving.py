"""Putting a face together: an engine, the schema registry, and all paths."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from penstock.protocols.ojs.http.desk import Desk
from penstock.protocols.ojs.http.face import OjsFace
from penstock.protocols.ojs.http.openapi import openapi
from penstock.protocols.ojs.http.routes.admin import ADMIN
from penstock.protocols.ojs.http.routes.cron import CRONS
from penstock.protocols.ojs.http.routes.dead import DEAD
from penstock.protocols.ojs.http.routes.events import EVENTS
from penstock.protocols.ojs.http.routes.hooks import HOOKS
from penstock.protocols.ojs.http.routes.jobs import JOBS
from penstock.protocols.ojs.http.routes.notes import NOTES
from penstock.protocols.ojs.http.routes.queues import QUEUES
from penstock.protocols.ojs.http.routes.schemas import SCHEMAS
from penstock.protocols.ojs.http.routes.service import SERVICE
from penstock.protocols.ojs.http.routes.workers import WORKERS
from penstock.protocols.ojs.http.routes.workflows import WORKFLOWS
from penstock.protocols.ojs.schemas import Checking, SchemaRegistry
from penstock.web.auth import Tokens

if TYPE_CHECKING:
    from penstock.protocols.ojs.engine import Engine

__all__ = ["TABLES", "open_face"]

TABLES: Final = (
    SERVICE,
    JOBS,
    WORKERS,
    QUEUES,
    DEAD,
    CRONS,
    WORKFLOWS,
    EVENTS,
    NOTES,
    SCHEMAS,
    HOOKS,
    ADMIN,
)


@asynccontextmanager
async def open_face(
    engine: Engine, tokens: Tokens | None = None, *, checking: Checking = "warn"
) -> AsyncIterator[OjsFace]:
    """The face of ``engine``, for as long as the block runs."""
    shared = engine.shared
    async with SchemaRegistry(shared.room.schemas, shared.clock) as schemas:
        document = openapi(TABLES, version("penstock"))
        desk = Desk(engine, schemas, tokens or Tokens(), checking, openapi=document)
        yield OjsFace(desk, TABLES)
