"""Timeouts: a handler that takes too long ends, wherever it runs, and frees its slot."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

from penstock import Context
from penstock.core.events import now_utc
from penstock.core.outcome import Failed
from penstock.runtime.run import Run
from tests.runtime import handlers
from tests.runtime.scripted import ScriptedDelivery, ScriptedSource, ScriptedWire
from tests.runtime.stage import a_shop, eventually, looping, task


def code_of(wire: ScriptedWire, work_id: str) -> str:
    outcome = wire.works[work_id].settled_as[0]
    assert isinstance(outcome, Failed), outcome
    return outcome.failure.code


async def test_an_async_handler_is_cancelled_at_its_timeout_and_may_be_retried() -> None:
    wire, ended = ScriptedWire("sleeps", max_attempts=2), []

    async def sleeps() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(1)

    async with looping(wire, task(sleeps, timeout=0.05)):
        work_id = await wire.enqueue({})
        await wire.over(work_id)

    assert ended == [1, 1]
    assert code_of(wire, work_id) == "timeout"


async def test_a_handler_that_swallows_its_cancellation_is_reminded_until_it_ends(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr("penstock.runtime.run._NUDGE_S", 0.05)
    wire, reminded = ScriptedWire("stubborn", max_attempts=1), []

    async def stubborn() -> None:
        while len(reminded) < 3:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                reminded.append(1)
        raise ValueError("all right, all right")

    async with looping(wire, task(stubborn, timeout=0.05)):
        work_id = await wire.enqueue({})
        await wire.settled(work_id)

    assert len(reminded) == 3
    assert code_of(wire, work_id) == "timeout"


async def test_work_that_was_finished_all_the_same_counts() -> None:
    wire = ScriptedWire("tidies")

    async def tidies() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "done what was left"
        return "never"

    async with looping(wire, task(tidies, timeout=0.05)):
        work_id = await wire.enqueue({})
        await wire.over(work_id)

    assert wire.outcomes(work_id) == ["Done"]


async def test_a_timeout_within_the_handler_is_its_own_failure() -> None:
    wire = ScriptedWire("asks", max_attempts=1)

    async def asks() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(3600)

    async with looping(wire, task(asks, timeout=60)):
        work_id = await wire.enqueue({})
        await wire.over(work_id)

    assert code_of(wire, work_id) == "handler_error"


async def test_a_thread_that_runs_too_long_is_given_up_and_keeps_its_slot_till_it_ends() -> None:
    wire, gate, told = ScriptedWire("blocks", max_attempts=1), threading.Event(), []

    def blocks(ctx: Context) -> None:
        gate.wait(30)
        told.append(ctx.lost)

    async with looping(wire, task(blocks, timeout=0.05), slots=1) as loop:
        work_id = await wire.enqueue({})
        await wire.over(work_id)
        await eventually(lambda: not loop.running)
        assert code_of(wire, work_id) == "timeout"
        assert (loop.zombies, loop.free) == (1, 0)

        gate.set()
        await eventually(lambda: not loop.zombies)
        await eventually(lambda: loop.free + loop.desks[0].seat.polling == 1)

    assert told == [True]


async def test_a_process_that_runs_too_long_is_killed_and_replaced() -> None:
    wire = ScriptedWire(max_attempts=1)
    slow = task(handlers.spin_forever, cpu=True, timeout=0.5)
    quick = task(handlers.square, cpu=True)
    async with looping(wire, slow, quick) as loop:
        stuck = await wire.enqueue({}, task="spin_forever")
        await wire.over(stuck)
        after = await wire.enqueue({"n": 7}, task="square")
        await wire.over(after)
        assert loop.zombies == 0

    assert code_of(wire, stuck) == "timeout"
    assert wire.works[after].settled_as[0].value == 49  # type: ignore[union-attr]


async def test_a_job_whose_deadline_has_passed_is_not_started() -> None:
    wire, started = ScriptedWire("late", max_attempts=1), []

    async def late() -> None:
        started.append(1)

    work_id = await wire.enqueue({})
    async with looping(wire, late, sources=[WithDeadline(wire, timedelta(seconds=-1))]):
        await wire.settled(work_id)

    assert started == []
    assert code_of(wire, work_id) == "timeout"


async def test_the_nearer_of_the_wires_deadline_and_the_tasks_timeout_counts() -> None:
    wire, seen = ScriptedWire("looks", max_attempts=1), []

    async def looks(ctx: Context) -> None:
        seen.append(ctx.remaining())
        await asyncio.sleep(3600)

    soon = WithDeadline(wire, timedelta(seconds=0.2))
    work_id = await wire.enqueue({})
    async with looping(wire, task(looks, timeout=60), sources=[soon]):
        await wire.settled(work_id)

    assert code_of(wire, work_id) == "timeout"
    assert seen[0] <= timedelta(seconds=0.2)


async def test_of_two_reasons_to_stop_the_first_stands_unless_the_lease_is_lost() -> None:
    from penstock.core.outcome import Cancelled, Interrupted, Lost

    async def waits() -> None: ...

    shop = a_shop(waits)
    wire = ScriptedWire("waits")
    await wire.enqueue({})
    (delivery,) = await ScriptedSource(wire).take(1, timedelta(0))
    run = Run(delivery.invocation, shop.plan("waits"), shop)

    run.stop(Cancelled("first"))
    run.stop(Interrupted("second"))
    assert run.stopped == "first"
    run.stop(Lost("gone"))
    assert run.stopped == "gone"


class WithDeadline(ScriptedSource):
    """Hands out work that must be done within ``left`` from now."""

    def __init__(self, wire: ScriptedWire, left: timedelta) -> None:
        super().__init__(wire)
        self.left = left

    def _claim(self, most: int) -> list[ScriptedDelivery]:
        from msgspec.structs import replace

        taken = super()._claim(most)
        for one in taken:
            one.invocation = replace(one.invocation, deadline_at=now_utc() + self.left)
        return taken
