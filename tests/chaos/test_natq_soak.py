"""Long proofs: memory that stays flat, and minutes of random deaths.

``PENSTOCK_CHAOS_MINUTES`` says how long each random loop lasts (one minute unless set) and
``PENSTOCK_CHAOS_SEED`` repeats one. The short versions are `test_natq_windows` and
`test_natq_outages`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from itertools import count
from random import Random, SystemRandom

import psutil
import pytest

import penstock
from penstock.protocols.natq.client import Job
from tests.chaos.harness import eventually
from tests.chaos.invariants import Ledger, judge
from tests.chaos.natq_flow import Flow, Herd
from tests.chaos.natq_stage import LAWS, Load, NatqStage, a_mix
from tests.chaos.proxy import FaultProxy

MINUTES = float(os.environ.get("PENSTOCK_CHAOS_MINUTES") or 1)
SEED = int(os.environ.get("PENSTOCK_CHAOS_SEED") or SystemRandom().randrange(10**6))
MEBI = 1024 * 1024

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60 * MINUTES + 900)]
LIMITED = ("hopeless",)  # an outage may cost a record that counts attempts, as the wire has it


async def test_memory_stays_flat_over_a_hundred_thousand_jobs(natq: NatqStage) -> None:
    total, warm = 100_000, 20_000
    async with natq.worker() as worker, penstock.connect(natq.server.url) as client:
        await natq.ready(worker)
        process = psutil.Process(worker.pid)
        tasks = ("quiet", "quiet", "quiet", "quiet_thread")
        jobs = (Job(tasks[n % 4], {"n": n}, f"r{n}") for n in range(total))
        report = await client.natq.enqueue_many(jobs)
        assert report.complete

        async def left(at_most: int) -> bool:
            return (await natq.js.stream_info("natq_jobs")).state.messages <= at_most

        await eventually(lambda: left(total - warm), 300, what="the warm-up", every=0.05)
        warmed_up = process.memory_info().rss
        await eventually(lambda: left(0), 600, what="the end of all jobs", every=0.2)
        ended = process.memory_info().rss

    print(f"RSS {warmed_up / MEBI:.1f} MiB when warm, {ended / MEBI:.1f} MiB at the end")
    assert ended < warmed_up + 6 * MEBI


def mix(dice: Random, without: tuple[str, ...] = ()) -> Iterator[Load]:
    for turn in count():
        for job in a_mix(dice):
            if job.task not in without:
                yield job._replace(run_id=f"{job.run_id}-{turn}")


async def test_minutes_of_random_worker_deaths_lose_nothing(natq: NatqStage) -> None:
    ledger, dice = Ledger(), Random(SEED)
    flow = Flow(natq, ledger, lambda: mix(dice), pause_s=0.005)
    herd = Herd(natq.worker, dice)
    end_at = time.monotonic() + 60 * MINUTES
    await asyncio.gather(herd.until(end_at, {}), herd.until(end_at, {}))
    await flow.end()
    await finish(natq, ledger, f"seed {SEED}, {herd.deaths} deaths, {herd.drains} drains")


async def test_minutes_of_deaths_of_workers_servers_and_connections_lose_nothing(
    natq: NatqStage,
) -> None:
    ledger, dice = Ledger(), Random(SEED)
    flow = Flow(natq, ledger, lambda: mix(dice, without=LIMITED), pause_s=0.005)
    herd = Herd(natq.worker, dice, longest_s=8.0)
    end_at = time.monotonic() + 60 * MINUTES
    waiting = {"PENSTOCK_NATQ__ON_LOST_RESULT": "nak"}
    async with FaultProxy.to(natq.server.url, seed=SEED) as proxy:
        await asyncio.gather(
            herd.until(end_at, waiting),
            herd.until(end_at, waiting, url=proxy.url),
            outages(natq, dice, end_at),
            cuts(proxy, dice, end_at),
        )
        proxy.heal()
        await flow.end()
    await finish(natq, ledger, f"seed {SEED}, {herd.deaths} deaths, {herd.drains} drains")


async def outages(stage: NatqStage, dice: Random, end_at: float) -> None:
    """The server goes and comes back, by SIGTERM or SIGKILL."""
    while time.monotonic() < end_at:
        await asyncio.sleep(dice.uniform(2.0, 8.0))
        await (stage.server.stop() if dice.random() < 0.5 else stage.server.kill())
        await stage.server.start()


async def cuts(proxy: FaultProxy, dice: Random, end_at: float) -> None:
    """One worker's connection is cut, or loses acknowledgements."""
    while time.monotonic() < end_at:
        await asyncio.sleep(dice.uniform(0.5, 3.0))
        if dice.random() < 0.5:
            await proxy.cut(for_=dice.uniform(0.0, 2.5))
        else:
            proxy.drop(acks=dice.randrange(1, 4))


async def finish(stage: NatqStage, ledger: Ledger, story: str) -> None:
    """One worker is left in peace until nothing is left to do; then the laws speak."""
    async with stage.worker() as worker:
        await stage.ready(worker)
        await stage.all_ended(300)
    await stage.collect(ledger)
    violations = judge(ledger, LAWS)
    print(f"{story}: {len(ledger.ids('enqueued'))} jobs, {len(ledger.of('started'))} starts")
    assert not violations, f"{story}\n" + "\n".join(map(str, violations[:20]))
