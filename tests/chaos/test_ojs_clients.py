"""Producers of unique jobs, atomic batches and workflows are killed between their writes.

What was staged and never committed disappears, what was committed counts in full; the
reconciler of any worker sees to both after `OjsOptions.patience`. The quick version, with all in
one process, is `tests/protocols/ojs/test_windows.py`.
"""

from __future__ import annotations

import pytest

from tests.chaos.harness import Program, eventually
from tests.chaos.invariants import Ledger
from tests.chaos.ojs_producer import BATCH, CHAIN
from tests.chaos.ojs_stage import OjsStage
from tests.chaos.points import KillPoint

pytestmark = pytest.mark.slow

UNIQUE = [
    KillPoint("ojs.unique_staged"),  # a job nobody sees, its key not taken
    KillPoint("ojs.unique_locked"),  # its key is taken, the job not yet visible
]
IMPATIENT = {"PENSTOCK_OJS__PATIENCE": "500ms"}


def producer(stage: OjsStage, manner: str, window: KillPoint | None = None) -> Program:
    env = {"NATS_URL": stage.server.url, **(window.env if window else {})}
    return Program.python("tests.chaos.ojs_producer", manner, env=env)


async def killed(stage: OjsStage, manner: str, window: KillPoint) -> None:
    async with producer(stage, manner, window) as doomed:
        assert await doomed.wait(60) == -9, doomed.output


async def states(stage: OjsStage) -> list[str]:
    """The states of all records; ``staged`` for those that do not count yet."""
    records = (await stage.records()).values()
    return ["staged" if one.get("staged") else one["job"]["state"] for one in records]


async def starts(stage: OjsStage) -> int:
    ledger = Ledger()
    ledger.read_journal(stage.journal)
    return len(ledger.of("started"))


@pytest.mark.parametrize("window", UNIQUE, ids=str)
async def test_a_unique_job_whose_producer_died_is_there_once_when_it_is_asked_for_again(
    window: KillPoint, ojs: OjsStage
) -> None:
    await killed(ojs, "unique", window)
    async with producer(ojs, "unique") as again:
        assert await again.wait(60) == 0, again.output
    async with ojs.worker(IMPATIENT) as worker:
        await ojs.ready(worker)

        async def one_is_left() -> bool:
            return await states(ojs) == ["completed"]

        await eventually(one_is_left, 60, what="one completed job and no other record")

    assert await starts(ojs) == 1


CHAINS = [
    (KillPoint("ojs.workflow_created"), None),  # the workflow is there, no member is
    (KillPoint("ojs.workflow_started"), None),  # its first member is there
    (None, KillPoint("ojs.workflow_started")),  # a worker started the next member
    (None, KillPoint("ojs.wrote.completed", 2)),  # a member is done, the next not started
]


@pytest.mark.parametrize(("at_producer", "at_worker"), CHAINS, ids=str)
async def test_a_chain_goes_on_whoever_died_between_its_members(
    at_producer: KillPoint | None, at_worker: KillPoint | None, ojs: OjsStage
) -> None:
    async with producer(ojs, "chain", at_producer) as first:
        assert await first.wait(60) == (-9 if at_producer else 0), first.output
    if at_worker is not None:
        async with ojs.worker({**IMPATIENT, **at_worker.env}) as doomed:
            assert await doomed.wait(60) == -9, doomed.output
    async with ojs.worker(IMPATIENT) as worker:
        await ojs.ready(worker)

        async def all_are_done() -> bool:
            return await states(ojs) == ["completed"] * CHAIN

        await eventually(all_are_done, 60, what="the whole chain")

    assert await starts(ojs) == CHAIN


async def test_an_atomic_batch_killed_before_its_commit_never_existed(ojs: OjsStage) -> None:
    await killed(ojs, "batch", KillPoint("ojs.batch_staged"))
    assert len(await states(ojs)) == BATCH
    async with ojs.worker(IMPATIENT) as worker:
        await ojs.ready(worker)

        async def nothing_is_left() -> bool:
            return await states(ojs) == []

        await eventually(nothing_is_left, 60, what="the end of what was staged")

    assert await starts(ojs) == 0


async def test_an_atomic_batch_killed_after_its_commit_counts_in_full(ojs: OjsStage) -> None:
    await killed(ojs, "batch", KillPoint("ojs.batch_committed"))
    async with ojs.worker(IMPATIENT) as worker:
        await ojs.ready(worker)

        async def all_are_done() -> bool:
            return await states(ojs) == ["completed"] * BATCH

        await eventually(all_are_done, 60, what="the whole batch")

    assert await starts(ojs) == BATCH
