"""The broker of an Open Job Spec worker dies or loses its wake-ups; workers are late or stopped."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.errors import PenstockError
from tests.chaos.harness import eventually
from tests.chaos.invariants import Ledger, judge
from tests.chaos.ojs_stage import LAWS, OjsStage, a_job

STORED = ("held", "held_thread", "held_process")


async def test_every_job_ends_though_its_wake_ups_are_purged_all_the_time(ojs: OjsStage) -> None:
    """The record decides: messages of the stream only hurry."""
    ledger = Ledger()
    async with ojs.worker() as worker, ojs.worker() as other:
        await ojs.ready(worker)
        await ojs.ready(other)
        for n in range(200):
            await ojs.put(a_job("plain", n=n), ledger)
            if n % 10 == 0:
                await ojs.js.purge_stream("OJS")
        await ojs.js.purge_stream("OJS")
        await ojs.all_ended(ledger)

    await ojs.collect(ledger)
    assert judge(ledger, LAWS) == []
    assert set(ledger.tally("started").values()) == {1}


async def test_a_server_killed_under_load_loses_no_open_job_spec_job(ojs: OjsStage) -> None:
    ledger = Ledger()
    async with ojs.worker() as worker:
        await ojs.ready(worker)
        over = asyncio.Event()
        producer = asyncio.create_task(produce(ojs, ledger, over))
        for _ in range(3):
            await has_put(ledger, 40)
            await ojs.server.kill()
            await ojs.server.start()
        await has_put(ledger, 40)
        over.set()
        await producer
        await ojs.all_ended(ledger, 120)
        worker.terminate()
        assert await worker.wait(60) == 0, worker.output[-3000:]

    await ojs.collect(ledger)
    assert judge(ledger, LAWS) == []


@pytest.mark.slow
async def test_a_frozen_ojs_worker_that_wakes_up_overtaken_writes_nothing(ojs: OjsStage) -> None:
    ledger, gate = Ledger(), ojs.folder / "gate"
    job = a_job("held", gate=str(gate))
    async with ojs.worker() as sleeper:
        await ojs.ready(sleeper)
        await ojs.put(job, ledger)
        await ojs.started(job.key, 1)
        sleeper.freeze()
        async with ojs.worker() as other:
            await ojs.ready(other)
            await ojs.started(job.key, 2)
            gate.touch()
            await ojs.all_ended(ledger)
            before = (await ojs.records())[job.run_id]
            sleeper.thaw()
            await sleeper.line("not settled", within=30)

    assert (await ojs.records())[job.run_id] == before
    assert before["job"]["result"] == before["job"]["attempt"] >= 2
    await ojs.collect(ledger)
    assert judge(ledger, LAWS) == []


@pytest.mark.slow
async def test_sigterm_gives_ojs_jobs_of_every_kind_back_without_costing_an_attempt(
    ojs: OjsStage,
) -> None:
    ledger, gate = Ledger(), ojs.folder / "gate"
    jobs = [a_job(task, gate=str(gate)) for task in STORED]
    async with ojs.worker({"PENSTOCK_WORKER__GRACE": "200ms"}) as worker:
        await ojs.ready(worker)
        for job in jobs:
            await ojs.put(job, ledger)
        for job in jobs:
            await ojs.started(job.key, 1)
        worker.terminate()
        assert await worker.wait(60) == 0, worker.output[-3000:]
    async with ojs.worker() as successor:
        await ojs.ready(successor)
        gate.touch()
        await ojs.all_ended(ledger)

    await ojs.collect(ledger)
    assert judge(ledger, LAWS) == []
    for job in jobs:
        attempts = [fact.detail for fact in ledger.of("started") if fact.id == job.key]
        assert attempts == ["attempt 1", "attempt 1"], job


async def produce(stage: OjsStage, ledger: Ledger, over: asyncio.Event) -> None:
    """Store job after job, through every outage; only what was answered counts."""
    while not over.is_set():
        job = a_job("plain", n=1)
        try:
            await stage.put(job, ledger)
        except PenstockError:  # nobody knows whether it is there: look, by its id
            await asyncio.sleep(0.1)
            if job.run_id in await known(stage):
                ledger.note("enqueued", job.key)
            else:
                ledger.note("doubtful", job.key)
            continue
        await asyncio.sleep(0.005)


async def known(stage: OjsStage) -> dict[str, object]:
    while True:
        try:
            return await stage.records()
        except Exception:
            await asyncio.sleep(0.1)


async def has_put(ledger: Ledger, more: int) -> None:
    wanted = len(ledger.of("enqueued")) + more
    await eventually(lambda: len(ledger.of("enqueued")) >= wanted, 90, what=f"{more} more jobs")
