"""Unique jobs and atomic batches through the engine."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from penstock.core.ids import uuid7
from penstock.protocols.ojs.arrival import enqueue
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.intake import Pushed
from penstock.protocols.ojs.refusal import Refusal
from penstock.protocols.ojs.store import Found

from .conftest import OpenEngine, until
from .stories import ack, asked, fetch, info, push, state, take, try_push

BY_ARGS: dict[str, Any] = {"keys": ["type", "args"]}


def conflicting(result: Pushed | Refusal) -> Refusal:
    assert isinstance(result, Refusal) and result.code == "duplicate", result
    return result


async def test_the_second_equal_job_is_refused_and_names_the_first(engine: Engine) -> None:
    first = await push(engine, args=[1], unique=BY_ARGS)
    refusal = conflicting(await try_push(engine, args=[1], unique=BY_ARGS))
    assert refusal.details["existing_job_id"] == first.id
    assert refusal.details["unique_key"] == first.unique_key
    await push(engine, args=[2], unique=BY_ARGS)
    assert (await engine.queue("default")).counts["available"] == 2


async def test_the_key_is_free_again_when_its_job_is_over(engine: Engine) -> None:
    first = await push(engine, unique=BY_ARGS)
    await take(engine)
    conflicting(await try_push(engine, unique=BY_ARGS))
    await ack(engine, first.id)
    second = await push(engine, unique=BY_ARGS)
    assert second.id != first.id


async def test_terminal_states_can_be_in_the_way_for_a_period(engine: Engine) -> None:
    policy = {**BY_ARGS, "states": ["completed"], "period": "PT1H"}
    first = await push(engine, unique=BY_ARGS)
    await take(engine)
    await ack(engine, first.id)
    conflicting(await try_push(engine, unique=policy))
    await push(engine, unique={**policy, "period": "PT0.001S"})


async def test_a_job_that_is_still_in_the_way_outlives_its_retention(
    open_engine: OpenEngine,
) -> None:
    engine = await open_engine(keep_completed=timedelta(milliseconds=100))
    policy = {**BY_ARGS, "states": ["completed"], "period": "PT1H"}
    kept, other = await push(engine, args=[1], unique=policy), await push(engine)
    for record in await fetch(engine, count=2):
        await ack(engine, record.id)
    await until(lambda: other.id not in engine.shared.books.index)
    refusal = conflicting(await try_push(engine, args=[1], unique=policy))
    assert refusal.details["existing_job_id"] == kept.id


async def test_ignore_answers_with_the_existing_job(engine: Engine) -> None:
    first = await push(engine, unique=BY_ARGS)
    again = await try_push(engine, unique={**BY_ARGS, "on_conflict": "ignore"})
    assert isinstance(again, Pushed) and again.deduplicated
    assert again.record.id == first.id


@pytest.mark.parametrize("held", [False, True])
async def test_replace_cancels_the_first_even_if_it_runs(engine: Engine, held: bool) -> None:
    first = await push(engine, unique=BY_ARGS)
    if held:
        await take(engine)
    second = await push(engine, unique={**BY_ARGS, "on_conflict": "replace"})
    assert await state(engine, first.id) == "cancelled"
    assert (await take(engine)).id == second.id


async def test_replace_except_schedule_takes_the_schedule_over(engine: Engine) -> None:
    first = await push(engine, scheduled_at="+PT60S", unique=BY_ARGS)
    policy = {**BY_ARGS, "on_conflict": "replace_except_schedule"}
    second = await push(engine, unique=policy)
    assert (second.state, second.job.scheduled_at) == ("scheduled", first.job.scheduled_at)
    assert abs(second.due_ms - first.due_ms) <= 1  # it is written in whole milliseconds


async def test_of_many_concurrent_equal_jobs_exactly_one_is_made(open_engine: OpenEngine) -> None:
    a, b = await open_engine(), await open_engine()
    results = await asyncio.gather(
        *(try_push(e, args=["x"], unique=BY_ARGS) for _ in range(10) for e in (a, b))
    )
    made = [r for r in results if isinstance(r, Pushed)]
    assert len(made) == 1
    assert (await b.queue("default")).counts["available"] == 1
    assert list(a.shared.books.index.staged()) == []


# What a crash leaves behind ------------------------------------------------------------


async def staged_by_hand(engine: Engine, *, locked: bool) -> str:
    """A unique job whose maker died after staging it, or after locking its key."""
    submission = asked(engine, unique=BY_ARGS)
    key = engine.intake._key_of(submission, submission.unique)
    record = enqueue(submission, uuid7(), engine.shared.clock(), engine.shared.dice,
                     unique_key=key, staged=True)  # fmt: skip
    await engine.shared.books.store.create(record)
    if locked:
        _, taken = await engine.shared.locks.take(
            key, record.id, submission.unique, engine.shared.clock
        )
        assert taken is not None
    return record.id


async def test_a_staged_job_without_its_lock_is_removed(open_engine: OpenEngine) -> None:
    engine = await open_engine(patience=timedelta(milliseconds=100))
    job_id = await staged_by_hand(engine, locked=False)
    assert isinstance(await engine.info(job_id), Refusal)
    await until(lambda: job_id not in engine.shared.books.index)
    await push(engine, unique=BY_ARGS)


async def test_a_staged_job_that_holds_its_lock_comes_to_be(open_engine: OpenEngine) -> None:
    engine = await open_engine(patience=timedelta(milliseconds=100))
    job_id = await staged_by_hand(engine, locked=True)
    conflicting(await try_push(engine, unique=BY_ARGS))  # and stays true:
    assert (await take(engine)).id == job_id


# Batches -------------------------------------------------------------------------------


async def test_a_batch_comes_in_order_and_is_counted_at_once(engine: Engine) -> None:
    pushed = await engine.push_many([asked(engine, args=[n]) for n in range(100)])
    assert isinstance(pushed, list)
    assert (await engine.queue("default")).counts["available"] == 100
    got = await fetch(engine, count=100)
    assert [r.id for r in got] == [p.record.id for p in pushed if isinstance(p, Pushed)]


async def test_a_batch_with_a_used_id_leaves_nothing_behind(engine: Engine) -> None:
    used = await push(engine, queue="other")
    jobs = [asked(engine), asked(engine, id=used.id), asked(engine)]
    refusal = await engine.push_many(jobs)
    assert isinstance(refusal, Refusal) and refusal.code == "duplicate"
    assert refusal.details["index"] == 1
    assert len(engine.shared.books.index) == 1
    assert await state(engine, used.id) == "available"


async def test_equal_unique_jobs_in_one_batch_conflict_with_each_other(engine: Engine) -> None:
    jobs = [asked(engine, args=[n], unique=BY_ARGS) for n in (1, 2, 1)]
    refusal = await engine.push_many(jobs)
    assert isinstance(refusal, Refusal) and refusal.details["index"] == 2
    await push(engine, args=[1], unique=BY_ARGS)  # the lock was given back
    assert len(engine.shared.books.index) == 1


async def test_ignore_in_a_batch_puts_the_existing_job_in_its_place(engine: Engine) -> None:
    first = await push(engine, args=[1], unique=BY_ARGS)
    ignoring = {**BY_ARGS, "on_conflict": "ignore"}
    done = await engine.push_many([asked(engine, args=[n], unique=ignoring) for n in (1, 2)])
    assert isinstance(done, list) and isinstance(done[0], Pushed)
    assert done[0].deduplicated and done[0].record.id == first.id
    assert (await engine.queue("default")).counts["available"] == 2


async def test_a_partial_batch_answers_for_each(engine: Engine) -> None:
    used = await push(engine)
    done = await engine.push_many([asked(engine), asked(engine, id=used.id)], atomic=False)
    assert isinstance(done, list)
    assert [type(one).__name__ for one in done] == ["Pushed", "Refusal"]


async def test_a_batch_whose_maker_died_is_undone_and_cannot_be_committed_late(
    open_engine: OpenEngine,
) -> None:
    engine = await open_engine(patience=timedelta(milliseconds=100))
    intake, store = engine.intake, engine.shared.books.store
    drafts = [intake._batch_draft(asked(engine), n, "t1", engine.shared.clock()) for n in range(3)]
    await intake._stage(drafts)
    assert await fetch(engine) == []
    await until(lambda: len(engine.shared.books.index) == 0)
    assert not await store.decide_txn("t1", committed=True, at_ms=0)


async def test_a_committed_batch_needs_its_verdict_no_more_after_a_while(
    open_engine: OpenEngine,
) -> None:
    engine = await open_engine(patience=timedelta(milliseconds=100))
    pushed = await engine.push_many([asked(engine) for _ in range(5)])
    assert isinstance(pushed, list)
    await until(lambda: not engine.shared.books.txns)
    later = await open_engine()
    assert (await later.queue("default")).counts["available"] == 5
    found = await later.shared.books.store.read(pushed[0].record.id)  # type: ignore[union-attr]
    assert isinstance(found, Found) and found.record.txn == ""
    assert (await info(later, found.record.id)).state == "available"
