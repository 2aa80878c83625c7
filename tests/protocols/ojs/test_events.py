"""Events: each step told, in order, under one id, by one instance at a time."""

from __future__ import annotations

import asyncio
from collections import Counter

from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.eventlog import EventFilter
from penstock.protocols.ojs.told import Event

from .conftest import OpenEngine, until
from .stories import ack, asked, nack, push, take

ANY = EventFilter()


async def told_of(engine: Engine, job_id: str) -> list[Event]:
    page = await engine.events.page(EventFilter(subject=job_id), limit=1000)
    return page.events


async def test_the_life_of_a_job_is_told_in_order(engine: Engine) -> None:
    record = await push(engine, retry={"initial_interval": "PT0.05S", "jitter": False},
                        meta={"traceparent": "00-abc-def-01"})  # fmt: skip
    await take(engine, worker="w1")
    await nack(engine, record.id)
    await take(engine, worker="w1")
    await ack(engine, record.id)

    await until(lambda: _has(engine, record.id, "job.completed"))
    events = await told_of(engine, record.id)

    assert [e.type for e in events] == [
        "job.enqueued", "job.started", "job.failed", "job.retrying", "job.enqueued",
        "job.started", "job.completed",
    ]  # fmt: skip
    assert len({e.id for e in events}) == len(events)
    last = events[-1].data
    assert (last["job_type"], last["queue"], last["attempt"]) == ("mail", "default", 2)
    assert last["duration_ms"] >= 0 and last["trace_id"] == "abc"


async def _has(engine: Engine, job_id: str, kind: str) -> bool:
    return kind in [e.type for e in await told_of(engine, job_id)]


async def test_pages_go_on_where_the_last_one_ended(engine: Engine) -> None:
    for n in range(7):
        await push(engine, queue=f"q{n % 2}")
    await until(lambda: _count(engine, 7))
    first = await engine.events.page(ANY, limit=3)
    second = await engine.events.page(ANY, after=first.cursor, limit=3)
    third = await engine.events.page(ANY, after=second.cursor, limit=3)
    assert (first.has_more, second.has_more, third.has_more) == (True, True, False)
    everything = [e.id for page in (first, second, third) for e in page.events]
    assert len(everything) == len(set(everything)) == 7
    only = await engine.events.page(EventFilter(queues=("q1",), types=("job.*",)))
    assert [e.data["queue"] for e in only.events] == ["q1"] * 3


async def _count(engine: Engine, count: int) -> bool:
    return len((await engine.events.page(ANY, limit=1000)).events) >= count


async def test_a_feed_hears_what_happens_and_what_it_missed(engine: Engine) -> None:
    first = await push(engine)
    await until(lambda: _count(engine, 1))
    after = (await engine.events.page(ANY)).cursor
    second = await push(engine)
    await until(lambda: _count(engine, 2))
    async with engine.events.follow(ANY, after=after) as feed:
        replayed = await feed.next(10)
        await engine.cancel(first.id)
        live = await feed.next(10)
    assert replayed is not None and replayed.subject == second.id
    assert live is not None and (live.type, live.subject) == ("job.cancelled", first.id)


async def test_a_batch_is_told_of_when_it_counts(engine: Engine) -> None:
    await engine.push_many([asked(engine) for _ in range(5)])
    await until(lambda: _count(engine, 5))
    kinds = Counter(e.type for e in (await engine.events.page(ANY)).events)
    assert kinds == {"job.enqueued": 5}


async def test_another_instance_goes_on_telling_when_the_first_one_ends(
    open_engine: OpenEngine,
) -> None:
    a, b = await open_engine(), await open_engine()
    ids = [(await push(a)).id for _ in range(20)]
    await until(lambda: _count(b, 20))
    await a.close()
    done = []
    for _ in ids:
        record = await take(b)
        await ack(b, record.id)
        done.append(record.id)
    await until(lambda: _complete(b, done))
    for job_id in done:
        events = await told_of(b, job_id)
        kinds = [e.type for e in events]
        assert kinds == ["job.enqueued", "job.started", "job.completed"]


async def _complete(engine: Engine, ids: list[str]) -> bool:
    page = await engine.events.page(EventFilter(types=("job.completed",)), limit=1000)
    return {e.subject for e in page.events} >= set(ids)


async def test_pausing_and_workflows_are_told_of(engine: Engine) -> None:
    await engine.pause("default")
    await engine.resume("default")
    await until(lambda: _count(engine, 2))
    page = await engine.events.page(EventFilter(types=("queue.*",)))
    assert [e.type for e in page.events] == ["queue.paused", "queue.resumed"]
    assert await asyncio.wait_for(_count(engine, 2), 10)
