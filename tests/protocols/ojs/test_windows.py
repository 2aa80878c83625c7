"""Killed between any two writes, and started again: every law still holds.

The program enqueues, works and dies by SIGKILL at a named point of its first life; later lives
go on. What is judged is read from the records and the event log by an engine that was there
all the time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from penstock.broker.embedded import EmbeddedNats
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.eventlog import EventFilter
from penstock.protocols.ojs.flows import FlowView
from penstock.protocols.ojs.views import JobQuery
from tests.chaos.harness import Killer, Program, eventually
from tests.chaos.points import KillPoint, RandomKills, Window
from tests.protocols.ojs.doomed import BATCH, EXPECTED, FLOW, UNIQUE

from .conftest import OpenEngine

ROOM = Path(__file__).parents[3] / "src" / "penstock" / "protocols" / "ojs"
QUICK = [
    KillPoint("ojs.wrote.enqueued", 3),
    KillPoint("ojs.unique_locked"),
    KillPoint("ojs.batch_staged"),
    KillPoint("ojs.workflow_created"),
    KillPoint("ojs.wrote.completed", 4),
]
THOROUGH = [
    KillPoint("ojs.wrote.scheduled", 2),
    KillPoint("ojs.wrote.promoted"),
    KillPoint("ojs.wrote.started", 3),
    KillPoint("ojs.wrote.retrying"),
    KillPoint("ojs.unique_staged"),
    KillPoint("ojs.batch_committed"),
    KillPoint("ojs.workflow_started"),
    KillPoint("ojs.workflow_started", 2),
    KillPoint("ojs.workflow_started", 3),
    KillPoint("ojs.cron_fired"),
    KillPoint("ojs.claimed", 2),
    KillPoint("ojs.handled", 3),
    KillPoint("ojs.settled", 5),
    KillPoint("ojs.handled", 2, freeze=True),
    RandomKills(5, 0.6, 1.6),
]


@pytest.mark.parametrize("window", QUICK, ids=str)
async def test_nothing_is_lost_or_doubled(
    open_engine: OpenEngine, ojs_nats: EmbeddedNats, window: Window
) -> None:
    await kill_and_judge(await open_engine(services=False), ojs_nats.url, window)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("window", THOROUGH, ids=str)
async def test_nothing_is_lost_or_doubled_in_any_window(
    open_engine: OpenEngine, ojs_nats: EmbeddedNats, window: Window
) -> None:
    await kill_and_judge(await open_engine(services=False), ojs_nats.url, window)


def test_every_named_point_has_a_window() -> None:
    sources = [path.read_text("utf-8") for path in ROOM.glob("*.py")]
    named = {name for text in sources for name in re.findall(r'reach\("(ojs\.\w+)"\)', text)}
    windows = {window.name for window in [*QUICK, *THOROUGH] if isinstance(window, KillPoint)}
    assert named and named <= windows


async def kill_and_judge(witness: Engine, url: str, window: Window) -> None:
    def born(env: Mapping[str, str]) -> Program:
        return Program.python("tests.protocols.ojs.doomed", url, env=env)

    async def over() -> bool:
        found = await witness.info_many(EXPECTED)
        flow = await witness.workflows.get(FLOW)
        alive = [i for i in EXPECTED if i not in found or found[i].state != "completed"]
        return not alive and isinstance(flow, FlowView) and flow.row.state == "completed"

    await Killer(born).run(window, over, dice=Random(7), within=100)
    await judge(witness)


async def judge(witness: Engine) -> None:
    """The laws: all done, once; no half-made job; callbacks once; counters equal to records."""
    everything = await witness.jobs(JobQuery(limit=10_000))
    jobs = {record.id: record for record in everything.jobs}
    kinds = Counter(record.job.type for record in jobs.values())
    assert (kinds["unique"], kinds["batch"]) == (len(UNIQUE), len(BATCH))
    assert (kinds["member"], kinds["called"], kinds["never"]) == (3, 1, 0)
    instants = [r.member.nominal_ms for r in jobs.values() if r.member and r.member.cron]
    assert len(instants) == len(set(instants))
    counted = Counter(record.state for record in jobs.values())
    counts = (await witness.queue("default")).counts
    assert {k: v for k, v in counts.items() if v} == dict(counted)
    assert list(witness.shared.books.index.staged()) == []
    await judge_events(witness, list(jobs))


async def judge_events(witness: Engine, ids: list[str]) -> None:
    """Each job was told completed once, and no two of its runs overlapped."""

    async def told() -> bool:
        page = await witness.events.page(EventFilter(types=("job.completed",)), limit=10_000)
        return {e.subject for e in page.events} >= set(EXPECTED)

    assert witness.options.events
    late = Engine.open(witness.shared.room.link, witness.options)
    async with await late:  # somebody must tell what the last life had no time to tell
        await eventually(told, 30)
        page = await witness.events.page(EventFilter(), limit=100_000)
    ended = Counter(e.subject for e in page.events if e.type == "job.completed")
    assert set(ended.values()) == {1}
    for job_id in ids:
        numbers = [e.data["n"] for e in page.events if e.subject == job_id]
        assert numbers == sorted(numbers)
