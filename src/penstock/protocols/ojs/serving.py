"""OJS's doors to the façade: serve an application's tasks straight over NATS, and let an
operator in.

A worker brings an engine of its own, whose services (promoter, reaper, cron, reconciler, events)
run beside any number of others; `OjsOptions.services` turns them off.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from penstock.core.admin import Admin
from penstock.core.delivery import Source
from penstock.core.errors import ConfigError
from penstock.core.rooms import Hall, Served
from penstock.core.task import Task
from penstock.protocols.ojs.admin import OjsAdmin
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.ojs.worker import Presence, sources_of

__all__ = ["open_admin", "serve"]

_log = logging.getLogger("penstock.ojs")


async def serve(hall: Hall, tasks: Iterable[Task]) -> Served:
    """A source for each queue that a task of the application names."""
    options: OjsOptions = hall.section("ojs")
    if options.server:
        return await _serve_elsewhere(hall, options, tasks)
    engine = await Engine.open(await hall.link(), options, services=options.services)
    hall.stack.push_async_callback(engine.close)
    sources = sources_of(engine, tasks, hall.worker_id)
    _some(sources)
    presence = Presence(engine, hall.worker_id, [source.queue for source in sources])
    await presence.start()
    hall.stack.push_async_callback(presence.stop)
    return Served(sources)


async def _serve_elsewhere(hall: Hall, options: OjsOptions, tasks: Iterable[Task]) -> Served:
    """Sources that fetch from a job server over HTTP."""
    from penstock.protocols.ojs.remote.source import sources_of as sources_at
    from penstock.protocols.ojs.remote.transport import Transport

    transport = Transport(options.server, token=options.server_token or "")
    await hall.stack.enter_async_context(transport)
    await transport.ask("GET", "/ojs/manifest")  # an address without a server is told at once
    hall.says(options.server)
    return Served(_some(sources_at(transport, tasks, hall.worker_id)))


async def open_admin(hall: Hall) -> Admin:
    """The operator's door."""
    engine = await Engine.open(await hall.link(), hall.section("ojs"), services=False)
    hall.stack.push_async_callback(engine.close)
    return OjsAdmin(engine)


def _some(sources: Sequence[Source]) -> Sequence[Source]:
    """``sources``, of which there must be one."""
    if not sources:
        raise ConfigError(
            "no task of this application is stored work, so OJS has none to serve",
            remedy="declare one without reply=True.",
        )
    return sources
