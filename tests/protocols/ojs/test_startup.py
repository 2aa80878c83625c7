"""Starting with many stored jobs: the index is rebuilt by pull, within seconds."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.core.ids import uuid7
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.ojs.record import encode_record
from penstock.protocols.ojs.room import Room

from .making import a_job
from .stories import fetch


async def stored(link: Link, count: int) -> None:
    """Write ``count`` records as a server before us would have left them."""
    room = await Room.open(link, OjsOptions())
    first = a_job(args=[{"to": "ann@example.com", "n": 1}], meta={"trace_id": "abc"})
    answers = []
    for n in range(count):
        job_id = uuid7()
        record = replace(first, job=replace(first.job, id=job_id), order=first.order + n)
        await link.room()
        answers.append(room.jobs.send_put(job_id, encode_record(record), revision=0))
    for answer in answers:
        await answer


async def started(url: str, count: int) -> float:
    """Store that many jobs, start an engine, and say how long it took to be ready."""
    link = await Link.open(NatsOptions.from_url(url))
    await stored(link, count)
    began = time.monotonic()
    engine = await Engine.open(link, OjsOptions(events=False))
    took = time.monotonic() - began
    assert engine.ready
    assert (await engine.queue("default")).counts["available"] == count
    assert len(await fetch(engine, count=10)) == 10
    await engine.close()
    await link.close(drain=False)
    return took


async def test_an_engine_is_ready_when_it_knows_all_that_was_stored(
    ojs_nats: EmbeddedNats,
) -> None:
    await started(ojs_nats.url, 2_000)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_hundred_thousand_jobs_are_known_within_ten_seconds(
    fresh_nats: EmbeddedNats,
) -> None:
    assert await started(fresh_nats.url, 100_000) < 10
