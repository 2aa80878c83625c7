"""OmniQ's doors to the façade: serve an application's tasks, and let an operator in.

A task is a queue: a job names no task, so two tasks cannot share one. Tasks that reply are
not stored work and stay with natq.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.core.admin import Admin
from penstock.core.errors import ConfigError, UnknownName
from penstock.core.rooms import Hall, Served
from penstock.core.task import Task
from penstock.protocols.omniq.admin import OmniqAdmin
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.options import OmniqOptions
from penstock.protocols.omniq.producer import queue_for
from penstock.protocols.omniq.worker import QueueSource

__all__ = ["open_admin", "open_client", "serve"]

_log = logging.getLogger("penstock.omniq")

EMBEDDED = "embedded"


async def serve(hall: Hall, tasks: Iterable[Task]) -> Served:
    """A source for each task that is stored work."""
    options: OmniqOptions = hall.section("omniq")
    queues = _chosen(_by_queue(tasks), options.queues)
    client = await open_client(hall)
    _tell_of_results(queues.values(), options)
    return Served(
        [
            QueueSource(client, queue, task.name, options, holder=hall.worker_id, policy=task.retry)
            for queue, task in queues.items()
        ]
    )


async def open_admin(hall: Hall) -> Admin:
    """The operator's door."""
    return OmniqAdmin(await open_client(hall))


async def open_client(hall: Hall) -> OmniqClient:
    """The Redis that the settings name, or one of our own that ends with this process."""
    options: OmniqOptions = hall.section("omniq")
    url = hall.section("redis").url
    if url in ("", EMBEDDED):
        data = hall.section("data")
        client = OmniqClient(
            compat=options.compat, folder=str(Path(data) / "redis") if data else None
        )
    else:
        client = OmniqClient(url, compat=options.compat, cluster=options.cluster)
    hall.stack.push_async_callback(client.close)
    await client.port()
    hall.says(client.url)
    return client


def _by_queue(tasks: Iterable[Task]) -> dict[str, Task]:
    queues: dict[str, Task] = {}
    for task in tasks:
        if task.replies:
            _log.info("task %s replies, so OmniQ does not serve it", task.name)
            continue
        queue = queue_for(task)
        if queue in queues:
            raise ConfigError(
                f"tasks {queues[queue].name!r} and {task.name!r} share the OmniQ queue {queue!r},"
                " whose jobs do not say which task they are for",
                remedy=f"give one a queue of its own: names={{'omniq': {task.name!r}}}.",
            )
        queues[queue] = task
    if not queues:
        raise ConfigError("no task of this application is stored work, so OmniQ has none to serve")
    return queues


def _chosen(queues: dict[str, Task], wanted: Sequence[str]) -> dict[str, Task]:
    """Those of ``wanted``, or all. Raises `UnknownName` for one that no task has."""
    for queue in wanted:
        if queue not in queues:
            raise UnknownName("queue", queue, queues)
    return {queue: queues[queue] for queue in wanted} if wanted else queues


def _tell_of_results(tasks: Iterable[Task], options: OmniqOptions) -> None:
    if options.result_ttl is not None:
        return
    telling = [task.name for task in tasks if task.binding.output_schema not in (None, _NOTHING)]
    if telling:
        _log.info(
            "OmniQ keeps no results; those of %s are dropped (omniq.result_ttl keeps them)",
            ", ".join(telling),
        )


_NOTHING = {"type": "null"}
