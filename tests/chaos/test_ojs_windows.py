"""A worker of Open Job Spec jobs is killed after each kind of write; nothing is lost.

Every transition is one compare-and-set on the job's record, so each window lies between such a
write and what somebody makes of it. The worker brings the background services along, so
promoting and reaping die here too. `tests/protocols/ojs/test_windows.py` kills a smaller program,
which enqueues as well, in every point of the room.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.chaos.invariants import Ledger
from tests.chaos.ojs_stage import OjsStage, a_job, killing
from tests.chaos.points import KillPoint, RandomKills, Window
from tests.chaos.scenario import Scenario, run_scenario

WINDOWS: list[Window] = [
    KillPoint("ojs.handled", 6),  # a handler has ended, nobody knows
]
DEEPER: list[Window] = [
    KillPoint("ojs.wrote.started", 5),  # claimed in the store, this process has not heard
    KillPoint("ojs.wrote.completed", 5),  # completed in the store, its worker has not heard
    KillPoint("ojs.claimed"),  # claimed and heard, no handler began
    KillPoint("ojs.settled", 5),  # heard, and not accounted for
    KillPoint("ojs.wrote.retrying"),  # an attempt failed, its retry is a record
    KillPoint("ojs.wrote.returned", 2),  # an attempt given back
    KillPoint("ojs.wrote.promoted"),  # due again, nobody woken up
    KillPoint("ojs.wrote.discarded"),  # out of attempts
    KillPoint("ojs.handled", 9, freeze=True),
    RandomKills(3, 0.5, 2.0),
]
ALL = [*WINDOWS, *(pytest.param(window, marks=pytest.mark.slow) for window in DEEPER)]


@pytest.mark.parametrize("window", ALL, ids=str)
async def test_no_open_job_spec_job_is_lost_or_done_twice(window: Window, ojs: OjsStage) -> None:
    ledger = await run_scenario(killing(ojs), window, seed=4)

    assert ledger.ids("final") == ledger.ids("enqueued")


@pytest.mark.slow
async def test_a_reaper_killed_in_the_middle_is_followed_by_another(ojs: OjsStage) -> None:
    scenario = killing(ojs)

    async def load(ledger: Ledger, dice: Random) -> None:
        for n in range(6):
            await ojs.put(a_job("plain", n=n), ledger)
        async with ojs.worker(KillPoint("ojs.claimed").env) as victim:
            assert await victim.wait(60) == -9

    reaping = Scenario(
        "ojs reaping", scenario.program, load, scenario.done, scenario.collect, scenario.laws, 120
    )
    ledger = await run_scenario(reaping, KillPoint("ojs.wrote.lapsed", 3), seed=4)

    assert set(ledger.tally("started").values()) == {1}
