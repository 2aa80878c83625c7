"""A natq of each test's own on the shared server: other names, the same wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.registry import Registry
from penstock.core.task import Task
from penstock.protocols.natq.client import NatqClient
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.room import Room
from penstock.protocols.natq.worker import JobSource

if TYPE_CHECKING:
    from penstock.broker.link import Link


@pytest.fixture
def options(unique: str) -> NatqOptions:
    return NatqOptions(
        tasks_bucket=f"{unique}_tasks",
        results_bucket=f"{unique}_results",
        stream=f"{unique}_jobs",
        sync_prefix=f"{unique}.req.",
        async_prefix=f"{unique}.job.",
        dead_stream=f"{unique}_dead",
        dead_prefix=f"{unique}.dead.",
        large_bucket=f"{unique}_large",
        checkpoints_bucket=f"{unique}_checkpoints",
    )


@pytest.fixture
async def room(link: Link, options: NatqOptions) -> Room:
    return await Room.open(link, options)


@pytest.fixture
async def client(link: Link, options: NatqOptions) -> NatqClient:
    return await NatqClient.open(link, options)


def a_task(fn: Callable[..., Any] | None = None, **how: Any) -> Task:
    """A declared task; called ``job`` unless told otherwise."""

    async def job(**fields: Any) -> dict[str, Any]:
        return fields

    return Registry().add(fn or job, **{"name": "job", **how})


@pytest.fixture
async def make_source(
    room: Room,
) -> AsyncIterator[Callable[..., Any]]:
    """Bound sources that are stopped after the test."""
    made: list[JobSource] = []

    async def make(task: Task | None = None, worker_id: str = "w-1", **how: Any) -> JobSource:
        source = JobSource(room, task or a_task(**how), worker_id)
        await source.bind()
        made.append(source)
        return source

    yield make
    for source in made:
        await source.stop()


SECOND = timedelta(seconds=1)
