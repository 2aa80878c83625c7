"""OmniQ consumers are killed at every step, on grouped queues, with the reaper running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.broker.redis_port import RedisLost, RedisUnreachable
from penstock.protocols.omniq.client import OmniqClient
from tests.chaos.harness import Program, eventually
from tests.chaos.invariants import Journal
from tests.chaos.omniq_groups_stage import LEASE_MS, GroupsStage, Lines, limit_of
from tests.chaos.points import KillPoint

DYING = [
    KillPoint("omniq.turn"),  # nothing taken yet
    KillPoint("omniq.turn", 6),  # handlers have ended, Redis does not know
    KillPoint("omniq.turned"),  # jobs leased, nobody here has seen them
    KillPoint("omniq.turned", 7),  # ends written and new jobs leased, nobody has seen them
    KillPoint("omniq.taken", 3),  # jobs in hand, no handler began
    KillPoint("app.halfway", 9),  # in the middle of a handler
    KillPoint("app.finished", 20),  # a handler is over, its job is not ended
    KillPoint("omniq.round", 1),  # about to promote and reap
    KillPoint("omniq.rounded", 2),  # has promoted and reaped
]
BEATS = [
    KillPoint("omniq.beat"),  # a heartbeat is to be sent
    KillPoint("omniq.beaten", 2),  # a heartbeat was answered
]
WINDOWS = [*DYING, *BEATS]
KILLED_IN = {window.name for window in WINDOWS if window.name.startswith("omniq.")}


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[GroupsStage]:
    with EmbeddedRedis(aof="always") as server:
        yield GroupsStage(server.url, tmp_path)


async def die_one_by_one(stage: GroupsStage, windows: list[KillPoint], *, at_once: int) -> None:
    """Each window gets a consumer that must die there, ``at_once`` of them beside each other."""
    left = iter(windows)

    async def die() -> None:
        for window in left:
            async with stage.consumer(window.env) as doomed:
                code = await doomed.wait(60)
                assert code == -9, f"{window} was never reached: {code}\n{doomed.output[-2000:]}"

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(die())


async def test_whichever_step_a_consumer_dies_at_groups_are_served_whole_and_in_order(
    stage: GroupsStage,
) -> None:
    jobs, groups = 1_000, 20
    await stage.load(jobs, groups)
    async with stage.audited():
        await die_one_by_one(stage, DYING, at_once=2)
        assert not await stage.empty(), "the work was over before the last window"
        async with stage.consumer() as last:
            await stage.drained(60, last)
            last.terminate()
            assert await last.wait(30) == 0

    assert stage.judge() == []
    assert stage.audits > 100
    assert len(stage.published) == jobs


async def test_a_consumer_that_dies_while_it_beats_is_inherited(stage: GroupsStage) -> None:
    async with OmniqClient(stage.url) as client:
        for n, window in enumerate(BEATS):
            name = await client.publish(
                stage.queue,
                {"sleep": 1.5},
                job_id=f"{n:06}",
                gid="g0",
                timeout_ms=900,
                backoff_ms=0,
                max_attempts=5,
            )
            stage.published.append(name)
            async with stage.consumer(window.env) as doomed:
                assert await doomed.wait(60) == -9, f"{window} was never reached"
            async with stage.consumer() as heir:
                await stage.drained(60, heir)
                heir.terminate()
                assert await heir.wait(30) == 0

    assert stage.judge() == []


@pytest.mark.slow
@pytest.mark.timeout(1500)
async def test_twenty_thousand_jobs_in_two_hundred_groups_outlive_their_consumers(
    stage: GroupsStage,
) -> None:
    jobs, groups = 20_000, 200
    dice = Random(3)
    await stage.load(jobs, groups)
    deaths = [
        KillPoint(window.name, dice.randint(window.passage, window.passage + 30))
        for _ in range(6)
        for window in DYING
        if not window.name.startswith("omniq.round")
    ]
    dice.shuffle(deaths)
    async with stage.audited():
        await die_one_by_one(stage, deaths, at_once=3)
        assert not await stage.empty(), "the work was over before the last window"
        async with stage.consumer() as one, stage.consumer() as two:
            for _ in range(10):  # and at no step in particular
                async with stage.consumer() as struck:
                    with_life = dice.uniform(0.5, 2.0)
                    await asyncio.sleep(with_life)
                    struck.kill()
                    await struck.wait()
            await stage.drained(900, one, two)
            for last in (one, two):
                last.terminate()
                assert await last.wait(30) == 0

    assert stage.judge() == []
    assert stage.audits > 1_000


# -- Redis itself dies ---------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_redis_killed_under_load_loses_nothing_that_it_acknowledged(
    tmp_path: Path,
) -> None:
    """AOF always: an answer means that it is on disk. What was not answered may have happened."""
    with EmbeddedRedis(aof="always") as server:
        stage = GroupsStage(server.url, tmp_path)
        stop = asyncio.Event()

        async def produce(client: OmniqClient, who: int) -> None:
            n = 0
            while not stop.is_set():
                name = f"{who}{n:05}"
                n += 1
                stage.published.append(await _surely_published(client, stage.queue, name, who))
                await asyncio.sleep(0.001)

        async with OmniqClient(server.url) as client, stage.consumer() as one:
            async with stage.consumer() as two, stage.audited(), asyncio.TaskGroup() as group:
                for who in range(1, 5):
                    group.create_task(produce(client, who))
                for _ in range(3):
                    enough = len(stage.published) + 200
                    await eventually(lambda n=enough: len(stage.published) > n, 60)  # type: ignore[misc]
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                enough = len(stage.published) + 100
                await eventually(lambda: len(stage.published) > enough, 60)
                stop.set()
            await stage.drained(60, one, two)
            await _end(one, two)

        assert stage.judge() == []
        assert len(stage.published) > 700


async def _surely_published(client: OmniqClient, queue: str, name: str, who: int) -> str:
    """A publish whose answer was lost is repeated, unless the job is found to be there."""
    doubtful = False
    options = {"group_limit": limit_of(who), "timeout_ms": LEASE_MS, "backoff_ms": 0}
    while True:
        try:
            if doubtful and await client.monitor.get_job(queue, name) is not None:
                return name
            return await client.publish(
                queue, {}, job_id=name, gid=f"g{who}", max_attempts=50, **options
            )
        except (RedisLost, RedisUnreachable):
            doubtful = True
            await asyncio.sleep(0.02)


async def _end(*programs: Program) -> None:
    for program in programs:
        program.terminate()
        await program.wait(30)


# -- the laws can see ----------------------------------------------------------------------------


def test_the_journal_of_a_dead_process_is_read_to_its_last_word(tmp_path: Path) -> None:
    """The laws see what they should: a run over the limit, and one out of order."""
    stage = GroupsStage("redis://unused", tmp_path)
    journal = Journal(stage.journal)

    for kind, job, gid in [
        ("started", "2", "g0"),
        ("started", "1", "g0"),
        ("finished", "2", "g0"),
        ("finished", "1", "g0"),
    ]:
        journal.note(kind, job, f"{gid} 1")
    lines = Lines.of(stage.journal)
    assert [found.law for found in lines.over_their_limits()] == ["limit"]
    assert [found.law for found in lines.out_of_order()] == ["first in, first out"]
