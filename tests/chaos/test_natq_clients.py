"""Producers that die between a publish and its acknowledgement, or never hear of it.

The same run ids enqueue the same jobs: a producer that was killed may simply be run again.
Within the stream's window the server keeps one message of each; beyond it the worker finds
the record of the run and acknowledges the second message without running it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

import penstock
from tests.chaos.frames import Frame
from tests.chaos.harness import Program, eventually
from tests.chaos.invariants import Ledger, judge, runs_at_most
from tests.chaos.natq_stage import LAWS, NatqStage
from tests.chaos.proxy import FaultProxy

COUNT = 12


@pytest.fixture
async def proxy(natq: NatqStage) -> AsyncIterator[FaultProxy]:
    async with FaultProxy.to(natq.server.url) as proxy:
        yield proxy


def producer(url: str, manner: str, count: int = COUNT) -> Program:
    return Program.python("tests.chaos.natq_producer", manner, str(count), env={"NATS_URL": url})


async def stored(stage: NatqStage) -> int:
    return (await stage.js.stream_info("natq_jobs")).state.messages


async def killed_between_publish_and_ack(stage: NatqStage, proxy: FaultProxy, nth: int) -> None:
    """A producer is dead; its ``nth`` job is stored, and it never heard so."""
    proxy.drop(matching=the_ack_of(nth))
    async with producer(proxy.url, "one") as doomed:
        await proxy.dropped_at_least(1, within=30)
        doomed.kill()
        await doomed.wait()
        assert f"r{nth - 1}" not in doomed.output
    assert await stored(stage) == nth


def the_ack_of(nth: int):  # type: ignore[no-untyped-def]
    """From the ``nth`` acknowledgement of ``natq_jobs`` on, none arrives."""
    seen = 0

    def matches(frame: Frame) -> bool:
        nonlocal seen
        seen += frame.is_puback and b'"natq_jobs"' in frame.payload
        return seen >= nth and frame.is_puback

    return matches


@pytest.mark.parametrize("nth", [1, 5, COUNT])
async def test_a_producer_killed_before_it_heard_the_ack_is_run_again_and_enqueues_nothing_twice(
    nth: int, natq: NatqStage, proxy: FaultProxy
) -> None:
    await killed_between_publish_and_ack(natq, proxy, nth)

    async with producer(natq.server.url, "one") as again:
        assert await again.wait(30) == 0, again.output

    said = [line.split()[0] for line in again.output.splitlines() if " r" in line]
    assert said == ["known"] * nth + ["stored"] * (COUNT - nth)
    assert await stored(natq) == COUNT


async def test_a_bulk_producer_killed_at_random_is_run_again_and_enqueues_nothing_twice(
    natq: NatqStage,
) -> None:
    count, dice = 20_000, Random(5)
    for _ in range(3):
        before = await stored(natq)
        async with producer(natq.server.url, "many", count) as doomed:
            wanted = before + dice.randrange(1, 3000)

            async def under_way(wanted: int = wanted, doomed: Program = doomed) -> bool:
                return not doomed.running or await stored(natq) >= wanted

            await eventually(under_way, 30, what=f"{wanted} messages", every=0.001)
            doomed.kill()
            await doomed.wait()
    left = await stored(natq)

    async with producer(natq.server.url, "many", count) as again:
        assert await again.wait(60) == 0, again.output

    assert f"stored {count - left} known {left}" in again.output
    assert 0 < left < count
    assert await stored(natq) == count


async def test_beyond_the_window_the_second_message_is_not_run(
    natq: NatqStage, proxy: FaultProxy
) -> None:
    await natq.forget_message_ids_after(0.1)
    await killed_between_publish_and_ack(natq, proxy, 5)
    await asyncio.sleep(0.2)  # the window is the server's, so only its time can pass
    async with producer(natq.server.url, "one") as again:
        assert await again.wait(30) == 0, again.output
    assert await stored(natq) == COUNT + 5

    ledger = Ledger()
    for n in range(COUNT):
        ledger.note("enqueued", f"plain.r{n}")
    async with natq.worker() as worker:
        await natq.ready(worker)
        await natq.all_ended()
    await natq.collect(ledger)

    assert judge(ledger, [*LAWS, runs_at_most(1)]) == []


async def test_an_enqueue_whose_ack_is_lost_is_told_apart_and_stored_once(
    natq: NatqStage, proxy: FaultProxy
) -> None:
    """The one repeat that is safe: the message carries the run id, so the server keeps one."""
    async with penstock.connect(proxy.url) as client:
        client.natq.room.publisher.timeout = 0.3
        proxy.drop(acks=1)

        run = await client.enqueue("plain", n=1, run_id="r0")

        assert run.duplicate
        assert len(proxy.dropped) == 1
    assert await stored(natq) == 1


async def test_an_enqueue_that_is_never_answered_says_how_to_go_on(
    natq: NatqStage, proxy: FaultProxy
) -> None:
    async with penstock.connect(proxy.url) as client:
        client.natq.room.publisher.timeout = 0.2
        proxy.drop(acks=1000)

        with pytest.raises(penstock.PenstockError, match="no answer came") as told:
            await client.enqueue("plain", n=1, run_id="r0")
        proxy.heal()
        run = await client.enqueue("plain", n=1, run_id="r0")

    assert "under the same run id" in str(told.value)
    assert run.duplicate
    assert await stored(natq) == 1
