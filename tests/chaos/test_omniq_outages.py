"""Redis goes away under load, answers get lost, workers are late or told to stop.

A lease on OmniQ is confirmed: each call is answered by the store, which compares the token.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.core.errors import PenstockError
from tests.chaos.harness import eventually
from tests.chaos.invariants import Ledger, judge, runs_at_most
from tests.chaos.natq_stage import Load
from tests.chaos.omniq_stage import LAWS, LEASE_MS, OmniqStage, every_lease_counts_once
from tests.chaos.proxy import FaultProxy
from tests.chaos.servers import RedisServer

STORED = ("held", "held_thread", "held_process")


@asynccontextmanager
async def a_stage(aof: str, folder: Path) -> AsyncIterator[OmniqStage]:
    async with RedisServer(aof=aof) as server:
        stage = await OmniqStage.on(server, folder)
        try:
            yield stage
        finally:
            await stage.close()


@pytest.mark.parametrize("aof", ["always", "everysec"])
async def test_a_redis_killed_under_load_comes_back_with_all_it_had_answered(
    aof: str, tmp_path: Path
) -> None:
    """With ``everysec`` too: a killed process loses nothing that it has written to its file."""
    async with a_stage(aof, tmp_path) as stage:
        ledger = Ledger()
        async with stage.worker() as worker:
            await stage.ready(worker)
            over = asyncio.Event()
            producer = asyncio.create_task(produce(stage, ledger, over))
            for _ in range(3):
                await has_put(ledger, 60)
                await stage.server.kill()
                await stage.server.start()
            await has_put(ledger, 60)
            over.set()
            await producer
            await stage.all_ended(ledger)
            worker.terminate()
            assert await worker.wait(60) == 0, worker.output[-3000:]
        await stage.collect(ledger)

    # A publish repeated because its answer was lost may find its job completed: it runs anew.
    assert judge(ledger, [law for law in LAWS if law is not every_lease_counts_once]) == []
    assert len(ledger.ids("final")) >= 240


async def test_an_end_whose_answer_was_lost_is_told_again_and_counts_once(
    omniq: OmniqStage,
) -> None:
    ledger, gate = Ledger(), omniq.folder / "gate"
    async with FaultProxy.to(omniq.server.url) as proxy, omniq.worker(url=proxy.url) as worker:
        await omniq.ready(worker)
        for n in range(3):
            await omniq.put(Load("held", f"r{n}", {"gate": str(gate)}), ledger)
        await omniq.started("held.r2", 1)
        proxy.delay(60, towards="client")  # what is told arrives, what is answered does not
        gate.touch()

        async def one_has_ended() -> bool:
            return (await omniq.client.monitor.counts("held")).completed > 0

        await eventually(one_has_ended, 60, what="an end that nobody hears of")
        await proxy.cut()
        proxy.heal()
        after = Load("plain", "p0", {"n": 1})
        await omniq.put(after, ledger)
        await omniq.all_ended(ledger)
        worker.terminate()
        assert await worker.wait(60) == 0, worker.output[-3000:]
        assert "not settled" not in worker.output

    await omniq.collect(ledger)
    assert judge(ledger, [*LAWS, runs_at_most(1)]) == []


async def test_a_publish_whose_answer_was_lost_is_kept_once(omniq: OmniqStage) -> None:
    ledger = Ledger()
    async with FaultProxy.to(omniq.server.url) as proxy:
        doubtful = await OmniqStage.on(omniq.server, omniq.folder)
        doubtful.client = type(omniq.client)(proxy.url, timeout=0.5)
        await doubtful.put(Load("plain", "p0", {"n": 0}), ledger)
        proxy.delay(60, towards="client")
        with pytest.raises(PenstockError):
            await doubtful.put(Load("plain", "p1", {"n": 1}), ledger)
        await proxy.cut()
        proxy.heal()
        assert (await omniq.client.monitor.counts("plain")).wait == 2  # it did arrive
        for n in range(3):
            await doubtful.put(Load("plain", f"p{n}", {"n": n}), ledger)
        await doubtful.close()
    assert (await omniq.client.monitor.counts("plain")).wait == 3

    async with omniq.worker() as worker:
        await omniq.ready(worker)
        await omniq.all_ended(ledger)
    await omniq.collect(ledger)
    assert judge(ledger, [*LAWS, runs_at_most(1)]) == []


async def test_a_frozen_omniq_worker_that_wakes_up_overtaken_writes_nothing(
    omniq: OmniqStage,
) -> None:
    ledger, gate = Ledger(), omniq.folder / "gate"
    job = Load("held", "r0", {"gate": str(gate)})
    async with omniq.worker() as sleeper:
        await omniq.ready(sleeper)
        await omniq.put(job, ledger)
        await omniq.started(job.key, 1)
        sleeper.freeze()
        async with omniq.worker() as other:
            await omniq.ready(other)
            await omniq.started(job.key, 2)
            gate.touch()
            await omniq.all_ended(ledger)
            before = await omniq.client.result("held", "r0")
            sleeper.thaw()
            await sleeper.line("not settled", within=30)

    assert await omniq.client.result("held", "r0") == before == b"2"
    await omniq.collect(ledger)
    assert judge(ledger, LAWS) == []


async def test_sigterm_gives_omniq_jobs_of_every_kind_back_without_costing_an_attempt(
    omniq: OmniqStage,
) -> None:
    ledger, gate = Ledger(), omniq.folder / "gate"
    async with omniq.worker({"PENSTOCK_WORKER__GRACE": "200ms"}) as worker:
        await omniq.ready(worker)
        for task in STORED:
            await omniq.put(Load(task, "r0", {"gate": str(gate)}), ledger)
        for task in STORED:
            await omniq.started(f"{task}.r0", 1)
        worker.terminate()
        assert await worker.wait(60) == 0, worker.output[-3000:]
    async with omniq.worker() as successor:
        await omniq.ready(successor)
        gate.touch()
        await omniq.all_ended(ledger)

    await omniq.collect(ledger)
    assert judge(ledger, LAWS) == []
    for task in STORED:
        attempts = [fact.detail for fact in ledger.of("started") if fact.id == f"{task}.r0"]
        assert attempts == ["attempt 1", "attempt 1"], task


async def test_a_job_that_kills_its_omniq_workers_fails_when_its_attempts_are_used_up(
    omniq: OmniqStage,
) -> None:
    ledger = Ledger()
    await omniq.put(Load("deadly", "r0"), ledger)
    for _ in range(2):
        async with omniq.worker() as victim:
            await victim.wait(60)
    async with omniq.worker() as survivor:
        await omniq.ready(survivor)
        await omniq.all_ended(ledger)
        assert survivor.running

    await omniq.collect(ledger)
    assert judge(ledger, LAWS) == []
    assert ledger.tally("started") == {"deadly.r0": 2}


async def test_a_cut_longer_than_the_lease_lets_another_take_over(omniq: OmniqStage) -> None:
    ledger, gate = Ledger(), omniq.folder / "gate"
    job = Load("held", "r0", {"gate": str(gate)})
    async with FaultProxy.to(omniq.server.url) as proxy, omniq.worker(url=proxy.url) as cut_off:
        await omniq.ready(cut_off)
        await omniq.put(job, ledger)
        await omniq.started(job.key, 1)
        proxy.refuse()
        async with omniq.worker() as other:
            await omniq.ready(other)
            await omniq.started(job.key, 2, within=30 + LEASE_MS / 1000)
            gate.touch()
            await omniq.all_ended(ledger)
        proxy.heal()
        after = Load("plain", "p0", {"n": 1})
        await omniq.put(after, ledger)  # only the one that was cut off is left to run it
        await omniq.all_ended(ledger)

    await omniq.collect(ledger)
    assert judge(ledger, LAWS) == []


async def produce(stage: OmniqStage, ledger: Ledger, over: asyncio.Event) -> None:
    """Publish job after job, through every outage; only what was answered counts."""
    n = 0
    while not over.is_set():
        try:
            await stage.put(Load("plain", f"p{n}", {"n": n}), ledger)
        except PenstockError:  # nobody knows whether it is there: again, under its id
            await asyncio.sleep(0.05)
            continue
        n += 1
        await asyncio.sleep(0.002)


async def has_put(ledger: Ledger, more: int) -> None:
    wanted = len(ledger.of("enqueued")) + more
    await eventually(
        lambda: len(ledger.of("enqueued")) >= wanted, 60, what=f"{more} more published jobs"
    )
