"""``penstock worker --ojs``: a process that serves handlers with no job server anywhere."""

from __future__ import annotations

import asyncio
import sys

import pytest

from penstock.broker.embedded import EmbeddedNats
from penstock.protocols.ojs.client import OjsClient
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.record import Record
from tests.chaos.harness import Program, eventually

from .conftest import OpenEngine

APP = "tests.protocols.ojs.test_worker:app"


def worker(url: str, *flags: str) -> Program:
    command = [sys.executable, "-m", "penstock", "worker", APP, "--ojs", "--nats", url, *flags]
    return Program(command)


async def workers_of(engine: Engine) -> list[str]:
    await engine.workers.table.barrier()
    return [row.id for row in engine.workers.all()]


async def test_a_worker_serves_until_it_is_told_to_stop_and_says_good_bye(
    open_engine: OpenEngine, ojs_nats: EmbeddedNats
) -> None:
    witness = await open_engine(services=False)
    async with await OjsClient.open(witness.shared.room.link) as client:
        async with worker(ojs_nats.url) as program:
            scheduled = await client.enqueue("double", {"n": 4}, scheduled_at="+PT0.3S")
            jobs = await client.enqueue_many([("double", [n]) for n in range(20)])
            assert await asyncio.gather(*(job.result(60) for job in jobs)) == [
                2 * n for n in range(20)
            ]
            assert await scheduled.result(60) == 8  # the worker's own services promoted it
            assert len(await workers_of(witness)) == 1
            program.terminate()
            assert await program.wait(30) == 0

        async def gone() -> bool:
            return not await workers_of(witness)

        await eventually(gone, 20)


@pytest.mark.slow
async def test_what_a_killed_worker_held_another_finishes(
    open_engine: OpenEngine, ojs_nats: EmbeddedNats
) -> None:
    witness = await open_engine(services=False)
    async with await OjsClient.open(witness.shared.room.link) as client:
        async with worker(ojs_nats.url) as doomed:
            await (await client.enqueue("double", [1])).result(60)
            stuck = await client.enqueue("sleepy", retry={"max_attempts": 5})

            async def running() -> bool:
                return await stuck.state() == "active"

            await eventually(running, 30)
            doomed.kill()
        async with worker(ojs_nats.url):
            assert await stuck.result(100) == 2
    record = await witness.info(stuck.id)
    assert isinstance(record, Record) and record.job.attempt == 2
