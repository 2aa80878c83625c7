"""Dead letters under the knife: burying a job that kills its workers, and replaying one.

What a job's death leaves are two writes, its copy and its record; another life takes three.
The process that makes them is killed in every gap.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.chaos.harness import Unmet, eventually
from tests.chaos.invariants import Ledger
from tests.chaos.natq_stage import LAWS, Load, NatqStage
from tests.chaos.points import KillPoint
from tests.chaos.scenario import Scenario, run_scenario

BURIALS = [
    KillPoint("natq.begun"),  # its record was read: the attempts are used up
    KillPoint("natq.buried"),  # the copy is kept, the record still says 100
    KillPoint("natq.finished"),  # the record is final, the message not terminated
]
REPLAYS = [
    KillPoint("natq.replay_erased"),  # the record is gone, the job not published
    KillPoint("natq.replay_published"),  # the job is published, the copy not gone
]


def burying(stage: NatqStage) -> Scenario:
    """A job whose worker has died of it already: it is started no more, and buried once."""

    async def load(ledger: Ledger, dice: Random) -> None:
        await stage.put(Load("deadly", "r0"), ledger)
        async with stage.worker() as victim:
            await victim.wait(30)

    return Scenario("deadly", stage.worker, load, stage.drained, stage.collect, LAWS, within=60)


@pytest.mark.parametrize("window", BURIALS, ids=str)
async def test_a_job_that_kills_its_workers_is_buried_once_and_never_started_again(
    window: KillPoint, natq: NatqStage
) -> None:
    ledger = await run_scenario(burying(natq), window, seed=1)

    assert ledger.tally("started") == {"deadly.r0": 1}
    assert ledger.tally("buried") == {"deadly.r0": 1}


@pytest.mark.parametrize("window", REPLAYS, ids=str)
async def test_a_replay_that_was_cut_short_can_be_repeated_at_any_time(
    window: KillPoint, natq: NatqStage
) -> None:
    ledger = Ledger()
    gate = natq.folder / "mended"
    job = Load("mended", "r0", {"gate": str(gate)})
    async with natq.worker() as worker:
        await natq.ready(worker)
        await natq.put(job, ledger)
        await natq.all_ended()
        gate.touch()
        async with natq.penstock("dlq", "replay", "--all", env=window.env) as cut_short:
            if await cut_short.wait(30) != -9:
                raise Unmet(f"{window} was never reached:\n{cut_short.output}")
        await natq.all_ended()
        async with natq.penstock("dlq", "replay", "--all") as again:
            assert await again.wait(30) == 0, again.output

        async def well() -> bool:
            return await natq.status(job.key) == 200

        await eventually(well, 30, what="the end of its second life")

    await natq.collect(ledger)
    assert await natq.statuses(job.key) == [None, 100, 200]
    assert ledger.tally("started") == {job.key: 2}
    assert not ledger.of("buried")
