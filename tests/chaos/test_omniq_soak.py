"""Long proofs for OmniQ: memory that stays flat, and minutes of random deaths.

``PENSTOCK_CHAOS_MINUTES`` and ``PENSTOCK_CHAOS_SEED`` as in `test_natq_soak`.
"""

from __future__ import annotations

import asyncio
import time
from random import Random

import psutil
import pytest

from penstock.core.errors import PenstockError
from tests.chaos.harness import eventually
from tests.chaos.invariants import Ledger, judge
from tests.chaos.natq_flow import Herd
from tests.chaos.omniq_stage import LAWS, OmniqStage, a_mix, every_lease_counts_once
from tests.chaos.proxy import FaultProxy
from tests.chaos.test_natq_soak import MEBI, MINUTES, SEED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60 * MINUTES + 900)]


async def test_memory_of_an_omniq_worker_stays_flat(omniq: OmniqStage) -> None:
    total, warm = 100_000, 20_000
    async with omniq.worker({"PENSTOCK_OMNIQ__RESULT_TTL": "1s"}) as worker:
        await omniq.ready(worker)
        process = psutil.Process(worker.pid)
        await omniq.client.publish_many("quiet", ({"n": n} for n in range(total)))

        async def left(at_most: int) -> bool:
            return await omniq.lengths("quiet") <= at_most

        await eventually(lambda: left(total - warm), 300, what="the warm-up", every=0.05)
        warmed_up = process.memory_info().rss
        await eventually(lambda: left(0), 600, what="the end of all jobs", every=0.2)
        ended = process.memory_info().rss

    print(f"RSS {warmed_up / MEBI:.1f} MiB when warm, {ended / MEBI:.1f} MiB at the end")
    assert ended < warmed_up + 6 * MEBI


async def test_minutes_of_deaths_of_omniq_workers_and_their_redis_lose_nothing(
    omniq: OmniqStage,
) -> None:
    ledger, dice = Ledger(), Random(SEED)
    herd = Herd(omniq.worker, dice, longest_s=6.0)
    end_at = time.monotonic() + 60 * MINUTES
    async with FaultProxy.to(omniq.server.url, seed=SEED) as proxy:
        await asyncio.gather(
            produce(omniq, ledger, dice, end_at),
            herd.until(end_at, {}),
            herd.until(end_at, {}, url=proxy.url),
            outages(omniq, proxy, dice, end_at),
        )
        proxy.heal()
    async with omniq.worker() as worker:
        await omniq.ready(worker)
        await omniq.all_ended(ledger, 300)
    await omniq.collect(ledger)

    story = f"seed {SEED}, {herd.deaths} deaths, {herd.drains} drains"
    print(f"{story}: {len(ledger.ids('enqueued'))} jobs, {len(ledger.of('started'))} starts")
    violations = judge(ledger, [law for law in LAWS if law is not every_lease_counts_once])
    assert not violations, f"{story}\n" + "\n".join(map(str, violations[:20]))


async def produce(stage: OmniqStage, ledger: Ledger, dice: Random, end_at: float) -> None:
    turn = 0
    while time.monotonic() < end_at:
        for job in a_mix(dice):
            named = job._replace(run_id=f"{job.run_id}-{turn}")
            while not await put(stage, named, ledger):
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.005)
        turn += 1


async def put(stage: OmniqStage, job: object, ledger: Ledger) -> bool:
    try:
        await stage.put(job, ledger)
    except PenstockError:  # nobody knows whether it is there: again, under its id
        return False
    return True


async def outages(stage: OmniqStage, proxy: FaultProxy, dice: Random, end_at: float) -> None:
    """Redis is killed and comes back; one worker's connection is cut."""
    while time.monotonic() < end_at:
        await asyncio.sleep(dice.uniform(1.0, 5.0))
        if dice.random() < 0.4:
            await stage.server.kill()
            await stage.server.start()
        else:
            await proxy.cut(for_=dice.uniform(0.0, 2.0))
