"""Wake-ups: one for each available job, taken off when it has moved on, and never needed."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

from penstock.core.errors import PenstockError
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.names import STREAM
from penstock.protocols.ojs.refusal import Refusal

from .conftest import OpenEngine, until
from .stories import ack, fetch, nack, push, take


async def waiting(engine: Engine) -> int:
    """How many wake-ups the stream holds."""
    return (await engine.shared.room.js.stream_info(STREAM)).state.messages


async def holds(engine: Engine, count: int) -> None:
    async def exactly() -> bool:
        return await waiting(engine) == count

    await until(exactly)


async def test_a_wake_up_stays_while_its_job_waits_and_runs_and_goes_when_it_ends(
    open_engine: OpenEngine,
) -> None:
    engine = await open_engine()
    await push(engine, queue="a.b")
    await push(engine, queue="a.b", scheduled_at="+PT60S")
    await holds(engine, 1)
    counts = await engine.shared.room.js.subject_counts(STREAM)
    assert list(counts) == ["ojs.queue.a=2Eb.jobs"]
    record = await take(engine, "a.b")
    assert await waiting(engine) == 1
    await ack(engine, record.id)
    await holds(engine, 0)


async def test_a_retry_has_a_wake_up_of_its_own(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await push(engine, retry={"initial_interval": "PT0.2S", "jitter": False})
    await holds(engine, 1)
    record = await take(engine)
    assert not isinstance(await nack(engine, record.id), Refusal)
    await ack(engine, (await take(engine)).id)
    await holds(engine, 0)


async def test_whoever_settles_a_job_takes_its_wake_up_off(open_engine: OpenEngine) -> None:
    a, b = await open_engine(), await open_engine(services=False)
    for _ in range(20):
        await push(b)
    await holds(a, 20)
    while records := await fetch(b, count=5):
        for record in records:
            await ack(b, record.id)
    await holds(a, 0)


async def test_the_next_steward_takes_over_what_the_last_one_held(open_engine: OpenEngine) -> None:
    a, b = await open_engine(), await open_engine()
    first = await push(a)
    await holds(a, 1)
    await take(b)
    await a.close()
    await push(b)
    await until(lambda: b.services is not None and b.services.steward.owned)
    await ack(b, first.id)
    record = await take(b)
    await ack(b, record.id)
    await until(lambda: b.shared.books.index.counts("default")["completed"] == 2)


async def test_what_the_stream_has_lost_is_published_again(open_engine: OpenEngine) -> None:
    engine = await open_engine(patience=timedelta(milliseconds=200), services=False)
    for _ in range(3):
        await push(engine)
    await engine.shared.room.js.purge(STREAM)
    later = await open_engine(patience=timedelta(milliseconds=200))
    await holds(later, 3)


async def test_a_stream_purged_under_load_loses_no_job(open_engine: OpenEngine) -> None:
    """The acid test: nothing may depend on the transport."""
    a, b = await open_engine(), await open_engine()
    retry = {"initial_interval": "PT0.05S", "jitter": False}
    total, finished = 300, 0
    stop = asyncio.Event()

    async def produce(engine: Engine, count: int) -> None:
        for n in range(count):
            delay = {"scheduled_at": "+PT0.1S"} if n % 5 == 0 else {}
            await push(engine, retry=retry, **delay)

    async def work(engine: Engine) -> None:
        nonlocal finished
        while finished < total:
            for record in await fetch(engine, count=5, wait_ms=500):
                if record.job.attempt == 1 and record.order % 7 == 0:
                    await nack(engine, record.id)
                else:
                    await ack(engine, record.id)
                    finished += 1

    async def purge() -> None:
        js = a.shared.room.js
        while not stop.is_set():
            await js.purge(STREAM)
            with contextlib.suppress(TimeoutError, PenstockError):
                await asyncio.wait_for(stop.wait(), 0.05)

    purging = asyncio.ensure_future(purge())
    makers = asyncio.gather(produce(a, total // 2), produce(b, total // 2))
    try:
        async with asyncio.timeout(90):
            await asyncio.gather(makers, work(a), work(b), work(a))
    finally:
        stop.set()
        await purging
    counts = (await a.queue("default")).counts
    assert counts["completed"] == total and sum(counts.values()) == total
