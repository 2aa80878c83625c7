"""An OmniQ worker is killed in every gap between two calls; nothing is lost or done twice.

Each call is one transaction in Redis, so the gaps lie before and after a call: what was told
and not answered, what was leased and not run. A second worker's reaper finds what is left.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock.protocols.omniq as room
from tests.chaos.omniq_stage import OmniqStage, killing
from tests.chaos.points import KillPoint, RandomKills, Window
from tests.chaos.scenario import run_scenario
from tests.chaos.test_omniq_groups import KILLED_IN

WINDOWS: list[Window] = [
    KillPoint("omniq.turn", 16),  # handlers have ended, nobody knows
    KillPoint("omniq.turned", 3),  # jobs are leased, this process has not heard
    KillPoint("omniq.turned", 16),  # ends are written and more is leased, likewise
    KillPoint("omniq.taken"),  # jobs in hand, no handler began
    KillPoint("omniq.checkpointed", 2),  # a checkpoint kept, its handler not told
    KillPoint("omniq.turn", 14, freeze=True),
    RandomKills(4, 0.3, 1.2),
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
async def test_no_omniq_job_is_lost_or_done_twice(window: Window, omniq: OmniqStage) -> None:
    ledger = await run_scenario(killing(omniq), window, seed=3)

    assert ledger.ids("final") == ledger.ids("enqueued")


def test_every_named_point_of_the_omniq_room_has_a_window() -> None:
    source = "".join(path.read_text() for path in Path(room.__file__).parent.glob("*.py"))
    named = set(re.findall(r'reach\("(omniq\.\w+)"\)', source))

    here = {window.name for window in WINDOWS if isinstance(window, KillPoint)}
    assert named == here | KILLED_IN
