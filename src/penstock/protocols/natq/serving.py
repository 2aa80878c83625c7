"""natq's doors to the façade: serve an application's tasks, and let an operator in."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.broker.link import Link
from penstock.core.admin import Admin
from penstock.core.rooms import Hall, Served
from penstock.core.task import Task
from penstock.protocols.natq.admin import NatqAdmin
from penstock.protocols.natq.room import Room
from penstock.protocols.natq.worker import open_worker

__all__ = ["open_admin", "serve"]


async def serve(hall: Hall, tasks: Iterable[Task]) -> Served:
    """Prepare the server for ``tasks``, up to their consumers."""
    link: Link = await hall.link()
    worker = await open_worker(link, tasks, hall.section("natq"), hall.worker_id)
    hall.stack.push_async_callback(worker.room.settle_errands)
    return Served(worker.sources, worker.doors)


async def open_admin(hall: Hall) -> Admin:
    """The operator's door."""
    return NatqAdmin(await Room.open(await hall.link(), hall.section("natq")))
