"""A worker is killed in every gap between two of its writes; nothing is lost or done twice.

Each window is one real `penstock worker` process that dies there by SIGKILL with a mix of
jobs in hand, a second one that finds what is left, and the laws of `natq_stage`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock.protocols.natq as room
from tests.chaos.natq_stage import NatqStage, killing
from tests.chaos.points import KillPoint, RandomKills, Window
from tests.chaos.scenario import run_scenario
from tests.chaos.test_natq_dead import REPLAYS

WINDOWS: list[Window] = [
    KillPoint("natq.streams_made"),  # the queue is there, no task is announced
    KillPoint("natq.announced"),  # tasks are announced, no consumer is bound
    KillPoint("natq.bound", 3),  # some consumers are bound
    KillPoint("natq.delivered"),  # messages in hand, nothing written
    KillPoint("natq.refused"),  # a bad input is being terminated
    KillPoint("natq.begun"),  # processing records stored, no handler started
    KillPoint("natq.read", 2),  # a redelivery's record read, its own not written
    KillPoint("natq.checkpointed", 2),  # a checkpoint stored, its handler not told
    KillPoint("natq.handled"),  # a handler has ended, nobody knows
    KillPoint("natq.large_kept"),  # a large result stored, no record refers to it
    KillPoint("natq.buried"),  # a dead letter stored, its record still at 100
    KillPoint("natq.finished"),  # a final record stored, its message not acked
    KillPoint("natq.acked"),  # an ack said, perhaps never sent
    KillPoint("natq.dropped"),  # a result dropped
    KillPoint("natq.forgotten"),  # a checkpoint of a finished run deleted
    KillPoint("natq.returned"),  # an attempt taken off the record, its message not given back
    KillPoint("natq.let_go"),  # a message given back, perhaps never sent
    KillPoint("natq.handled", 5, freeze=True),
    RandomKills(4, 0.3, 1.2),
]
DEEPER: list[Window] = [
    *(KillPoint("natq.begun", passage) for passage in (2, 4, 6)),
    *(KillPoint("natq.handled", passage) for passage in (3, 9, 15)),
    *(KillPoint("natq.finished", passage) for passage in (4, 8, 12)),
    *(KillPoint("natq.acked", passage) for passage in (3, 6, 9)),
    *(KillPoint("natq.handled", passage, freeze=True) for passage in (2, 12)),
    RandomKills(12, 0.2, 1.5),
]
ALL = [*WINDOWS, *(pytest.param(window, marks=pytest.mark.slow) for window in DEEPER)]


@pytest.mark.parametrize("window", ALL, ids=str)
async def test_nothing_is_lost_or_done_twice(window: Window, natq: NatqStage) -> None:
    ledger = await run_scenario(killing(natq), window, seed=2)

    assert ledger.ids("final") == ledger.ids("enqueued")


def test_every_named_point_of_the_room_has_a_window() -> None:
    source = "".join(path.read_text() for path in Path(room.__file__).parent.glob("*.py"))
    named = set(re.findall(r'reach\("(natq\.\w+)"\)', source))

    killed_in = {window.name for window in WINDOWS if isinstance(window, KillPoint)}
    assert named == killed_in | {window.name for window in REPLAYS}
