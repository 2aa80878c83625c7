"""Jobs through the engine, on a real server."""

from __future__ import annotations

import asyncio

from msgspec import Raw

from penstock.core.ids import uuid7
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.intake import Pushed
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal
from penstock.protocols.ojs.views import JobQuery

from .conftest import OpenEngine, until
from .stories import ack, asked, beat, fetch, info, nack, push, state, take, try_push


async def test_a_job_is_enqueued_fetched_and_acked(engine: Engine) -> None:
    pushed = await push(engine, args=[1, {"a": 2}])
    record = await take(engine, worker="w1")
    done = await ack(engine, record.id, {"ok": True}, worker="w1")

    assert pushed.id == record.id and record.job.attempt == 1
    assert isinstance(done, Record) and done.state == "completed"
    assert await info(engine, record.id) == done


async def test_an_id_that_was_used_is_a_duplicate_in_any_state(engine: Engine) -> None:
    job_id = uuid7()
    await push(engine, id=job_id)
    again = await try_push(engine, id=job_id)
    assert isinstance(again, Refusal) and again.code == "duplicate"
    assert again.details["existing_job_id"] == job_id
    await take(engine)
    await ack(engine, job_id)
    after = await try_push(engine, id=job_id)
    assert isinstance(after, Refusal)
    assert after.details["existing_job_state"] == "completed"


async def test_of_many_who_fetch_at_once_each_job_goes_to_one(engine: Engine) -> None:
    ids = {(await push(engine)).id for _ in range(30)}
    hands = await asyncio.gather(*(fetch(engine, count=3) for _ in range(20)))
    got = [record.id for hand in hands for record in hand]
    assert len(got) == 30 and set(got) == ids


async def test_of_two_acks_one_wins(engine: Engine) -> None:
    await push(engine)
    record = await take(engine)
    first, second = await asyncio.gather(ack(engine, record.id), ack(engine, record.id))
    assert sorted(isinstance(r, Record) for r in (first, second)) == [False, True]


async def test_priority_and_then_order_decide_who_is_next(engine: Engine) -> None:
    ids = [(await push(engine, priority=p)).id for p in (0, 5, -5, 5)]
    got = [record.id for record in await fetch(engine, count=4)]
    assert got == [ids[1], ids[3], ids[0], ids[2]]


async def test_queues_are_drained_from_left_to_right(engine: Engine) -> None:
    b = await push(engine, queue="b", priority=100)
    a = await push(engine, queue="a")
    got = [record.id for record in await fetch(engine, "a", "b", count=2)]
    assert got == [a.id, b.id]


async def test_a_scheduled_job_comes_when_it_is_due(engine: Engine) -> None:
    record = await push(engine, scheduled_at="+PT0.3S")
    assert record.state == "scheduled"
    assert await fetch(engine) == []
    assert (await take(engine)).id == record.id


async def test_a_failed_job_comes_again_after_its_backoff(engine: Engine) -> None:
    await push(engine, retry={"initial_interval": "PT0.1S", "jitter": False})
    first = await take(engine)
    failed = await nack(engine, first.id)
    assert isinstance(failed, Record) and failed.state == "retryable"
    again = await take(engine)
    assert (again.id, again.job.attempt) == (first.id, 2)


async def test_a_job_whose_holder_is_silent_goes_to_another(engine: Engine) -> None:
    await push(engine)
    late = await take(engine, visibility_ms=200, worker="slow")
    again = await take(engine, worker="quick")
    refused = await ack(engine, late.id, worker="slow")
    assert again.id == late.id and again.job.attempt == 2
    assert isinstance(refused, Refusal) and refused.code == "conflict"


async def test_a_heartbeat_keeps_a_job_and_tells_of_a_cancellation(engine: Engine) -> None:
    kept, gone = await push(engine), await push(engine)
    await fetch(engine, count=2, worker="w1", visibility_ms=30_000)
    await engine.cancel(gone.id, reason="changed my mind")

    answer = await beat(engine, "w1", kept.id, gone.id, "no-such-job")

    assert answer.extended == (kept.id,)
    assert answer.cancelled == (gone.id,)
    assert answer.state == "running"


async def test_a_worker_that_drains_gets_nothing_more(engine: Engine) -> None:
    await push(engine)
    await beat(engine, "w1", state="drain")
    assert await fetch(engine, worker="w1") == []
    assert len(await fetch(engine, worker="w2")) == 1


async def test_a_job_expires_even_if_nobody_asks(engine: Engine) -> None:
    record = await push(engine, expires_at="+PT0.2S")
    await until(lambda: engine.shared.books.index.counts("default")["discarded"])
    gone = await info(engine, record.id)
    assert gone.state == "discarded" and not gone.job.completed_at
    assert await fetch(engine) == []


async def test_a_paused_queue_takes_jobs_and_gives_none(engine: Engine) -> None:
    view = await engine.pause("default")
    assert view.paused
    record = await push(engine)
    assert record.state == "available" and await fetch(engine) == []
    await engine.resume("default")
    assert (await take(engine)).id == record.id


async def test_counts_are_exact_at_once(engine: Engine) -> None:
    for _ in range(4):
        await push(engine)
    await push(engine, scheduled_at="+PT60S")
    record = await take(engine)
    await ack(engine, record.id)
    await take(engine)
    counts = (await engine.queue("default")).counts
    assert (counts["available"], counts["active"], counts["completed"], counts["scheduled"]) == (
        2, 1, 1, 1,
    )  # fmt: skip


async def test_a_dead_letter_is_listed_retried_and_deleted(engine: Engine) -> None:
    policy = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    ids = [(await push(engine, retry=policy)).id for _ in range(2)]
    for record in await fetch(engine, count=2):
        await nack(engine, record.id)
    page = await engine.dead_letters.page(JobQuery())
    assert {record.id for record in page.jobs} == set(ids) and page.total == 2

    back = await engine.dead_letters.retry(ids[0])
    gone = await engine.dead_letters.delete(ids[1])

    assert isinstance(back, Record) and (back.state, back.job.attempt) == ("available", 0)
    assert isinstance(gone, Record)
    assert isinstance(await engine.info(ids[1]), Refusal)
    assert (await engine.dead_letters.page(JobQuery())).total == 0
    assert (await take(engine)).job.attempt == 1
    assert await state(engine, (await push(engine, id=ids[1])).id) == "available"


async def test_checkpoints_count_from_one_and_survive_the_end(engine: Engine) -> None:
    record = await push(engine)
    for n in (1, 2):
        saved = await engine.save_checkpoint(record.id, Raw(b'{"n":%d}' % n))
        assert isinstance(saved, Record) and saved.checkpoint_seq == n
    taken = await take(engine)
    assert b'"sequence":2' in bytes(taken.job.checkpoint)  # type: ignore[arg-type]
    await ack(engine, record.id)
    assert isinstance(await engine.checkpoint(record.id), Raw)
    assert isinstance(await engine.save_checkpoint(record.id, Raw(b"1")), Refusal)


async def test_progress_never_goes_down_and_ends_at_one(engine: Engine) -> None:
    record = await push(engine)
    await take(engine)
    for value in (0.5, 0.2, 7.0):
        noted = await engine.note_progress(record.id, value=value)
        assert isinstance(noted, Record) and noted.progress is not None
    assert noted.progress.value == 1.0
    await ack(engine, record.id)
    found = await engine.progress(record.id)
    assert isinstance(found, tuple) and found[1] is not None and found[1].value == 1.0


async def test_a_full_queue_refuses_and_says_how_full_it_is(engine: Engine) -> None:
    from penstock.protocols.ojs.queues import parse_queue_config

    bound = parse_queue_config({"backpressure": Raw(b'{"max_depth":2}')})
    await engine.configure("default", bound)
    await push(engine)
    second = await try_push(engine)
    third = await try_push(engine)
    assert isinstance(second, Pushed) and second.pressure is not None
    assert (second.pressure.depth, second.pressure.ratio) == (2, 1.0)
    assert isinstance(third, Refusal) and third.code == "QUEUE_FULL"


async def test_a_rate_of_one_per_second_holds_for_the_queue(engine: Engine) -> None:
    for _ in range(3):
        await push(engine, rate_limit={"max_per_second": 1})
    first = await fetch(engine, count=3)
    at_once = await fetch(engine, count=3)
    later = await fetch(engine, count=3, wait_ms=10_000)
    assert (len(first), len(at_once), len(later)) == (1, 0, 1)


async def test_a_concurrency_of_one_lets_the_next_start_when_the_first_ends(
    engine: Engine,
) -> None:
    limit = {"key": "gpu", "concurrency": 1}
    for queue in ("a", "b"):
        await push(engine, queue=queue, rate_limit=limit)
    other = await push(engine, queue="b", priority=-9)
    got = await fetch(engine, "a", "b", count=3)
    assert {r.job.queue for r in got} == {"a", "b"} and other.id in {r.id for r in got}
    limited = next(r for r in got if r.id != other.id)
    waiting = asyncio.ensure_future(fetch(engine, "b", "a", count=2, wait_ms=20_000))
    await ack(engine, limited.id)
    assert len(await waiting) == 1
    view = await engine.limit("gpu")
    assert not isinstance(view, Refusal) and (view.active, view.waiting) == (1, 0)


async def test_what_one_instance_writes_another_sees(open_engine: OpenEngine) -> None:
    a, b = await open_engine(), await open_engine()
    for n in range(10):
        here, there = (a, b) if n % 2 else (b, a)
        record = await push(here)
        assert (await there.queue("default")).counts["available"] == 1
        got = await fetch(there)
        assert [r.id for r in got] == [record.id]
        assert isinstance(await ack(here, record.id), Record)
    assert (await a.queue("default")).counts["completed"] == 10


async def test_an_instance_that_starts_knows_everything(open_engine: OpenEngine) -> None:
    a = await open_engine()
    for _ in range(50):
        await push(a)
    await take(a)
    await a.push_many([asked(a) for _ in range(5)])
    b = await open_engine()
    assert b.shared.books.index.counts("default") == a.shared.books.index.counts("default")
    assert b.shared.books.index.counts("default")["available"] == 54


async def test_reset_forgets_everything_everywhere(open_engine: OpenEngine) -> None:
    a, b = await open_engine(), await open_engine()
    job_id = (await push(a)).id
    await a.pause("default")
    await b.reset()
    assert isinstance(await a.info(job_id), Refusal)
    assert (await a.queue("default")).counts["available"] == 0
    await push(a, id=job_id)
    assert (await take(b)).id == job_id


async def test_a_fetch_that_is_cancelled_leaves_no_job_behind(engine: Engine) -> None:
    for _ in range(40):
        await push(engine)
    for n in range(20):
        fetching = asyncio.ensure_future(fetch(engine, count=2))
        for _ in range(n):
            await asyncio.sleep(0)
        fetching.cancel()
        await asyncio.wait([fetching])
        if not fetching.cancelled():
            await engine.give_back(fetching.result())
    await until(lambda: engine.shared.books.index.counts("default")["available"] == 40)
    assert len(await fetch(engine, count=99)) == 40


async def test_waiting_fetches_end_when_the_engine_is_closed(engine: Engine) -> None:
    waiting = asyncio.ensure_future(fetch(engine, wait_ms=60_000))
    await asyncio.sleep(0)
    await engine.close()
    assert await asyncio.wait_for(waiting, 30) == []
