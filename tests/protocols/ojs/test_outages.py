"""The server goes away and comes back: what was confirmed is there, and work goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.core.errors import PenstockError
from penstock.protocols.ojs import books
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.refusal import Refused

from .conftest import until
from .stories import ack, fetch, push, take


@pytest.fixture
async def pair(fresh_nats: EmbeddedNats) -> AsyncIterator[list[Engine]]:
    engines, links = [], []
    for _ in range(2):
        links.append(await Link.open(NatsOptions.from_url(fresh_nats.url)))
        engines.append(await Engine.open(links[-1]))
    yield engines
    for engine, link in zip(engines, links, strict=True):
        await engine.close()
        await link.close(drain=False)


async def insistently(deed: Any) -> Any:
    """Repeat what NATS did not answer, as a client would on a 503."""
    end = asyncio.get_running_loop().time() + 60
    while True:
        try:
            return await deed()
        except (Refused, PenstockError):
            assert asyncio.get_running_loop().time() < end
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", ["restart", "kill"])
async def test_a_restarted_server_loses_no_job_and_no_due_time(
    pair: list[Engine], fresh_nats: EmbeddedNats, how: str
) -> None:
    a, b = pair
    waiting = {(await push(a)).id for _ in range(20)}
    waiting.add((await push(b, scheduled_at="+PT0.5S")).id)
    held = await take(b)

    if how == "kill":
        fresh_nats.kill()
        fresh_nats.start()
    else:
        fresh_nats.restart()

    await insistently(lambda: ack(b, held.id))
    done = {held.id}
    while done != waiting:
        for engine in pair:

            async def some(engine: Engine = engine) -> Any:
                return await fetch(engine, count=5, wait_ms=500)

            for record in await insistently(some):
                await insistently(lambda record=record: ack(a, record.id))
                done.add(record.id)
    await until(lambda: b.shared.books.index.counts("default")["completed"] == len(waiting))
    assert a.ready and b.ready


async def test_while_nats_is_away_an_answer_says_so_and_nothing_hangs(
    pair: list[Engine], fresh_nats: EmbeddedNats
) -> None:
    a, _ = pair
    await push(a)
    fresh_nats.pause()
    try:
        with pytest.raises(Refused) as told:
            await asyncio.wait_for(fetch(a, "empty"), 30)
        assert told.value.refusal.status in (503, 504)
    finally:
        fresh_nats.resume()
    assert (await insistently(lambda: take(a))).job.attempt >= 1


async def test_who_was_away_for_long_learns_which_jobs_are_gone(
    pair: list[Engine], fresh_nats: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    gone, kept = await push(a), await push(a)
    await b.shared.books.barrier()
    await b.shared.books._mirror.stop()  # deaf, as when cut off
    await a.cancel(gone.id)
    await a.delete(gone.id)
    jobs = a.shared.room.jobs
    await a.shared.room.js.purge(jobs.stream, subject=f"{jobs.prefix}{gone.id}")  # its marker too
    assert gone.id in b.shared.books.index

    monkeypatch.setattr(books, "_LONG_AWAY_S", -1.0)
    fresh_nats.restart()

    await until(lambda: b.ready and gone.id not in b.shared.books.index)
    assert b.shared.books.index.counts("default")["available"] == 1
    record = await insistently(lambda: take(b))
    assert record.id == kept.id
