"""Leases in hand: kept by one shared ticker, and obeyed when they are lost or cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Context
from penstock.core.context import LeaseLost
from penstock.core.delivery import CancelAsked, Gone, Renewed, SettledKind, Unknown
from penstock.core.events import EventKind
from penstock.core.lease import Proof
from tests.runtime.scripted import ScriptedWire
from tests.runtime.stage import Clock, Cue, Recorder, a_shop, eventually, looping, task


async def test_heartbeats_of_many_jobs_come_from_one_ticker() -> None:
    cue, wire = Cue(), ScriptedWire("held", beat_s=0.05)

    async def held() -> None:
        await cue.here_async()

    ids = [await wire.enqueue({}) for _ in range(50)]
    before = len(asyncio.all_tasks())
    async with looping(wire, held, slots=50) as loop:
        await cue.is_reached(50)
        await eventually(lambda: wire.calls["renew"] >= 100)
        renewals = len(asyncio.all_tasks()) - before - 50 - 1  # jobs, puller

        assert loop.running == 50
        assert renewals <= 50  # none piles up behind another
        cue.go()
        await wire.over(*ids)


async def test_a_job_that_ends_before_its_first_beat_is_never_renewed() -> None:
    async def quick() -> None: ...

    wire = ScriptedWire("quick")
    async with looping(wire, quick):
        await wire.over(await wire.enqueue({}))

    assert wire.calls["renew"] == 0


async def held_async(ctx: Context, cue: Cue) -> str:
    await cue.here_async()
    return "finished"


@pytest.mark.parametrize(
    ("answer", "outcome", "kind"),
    [
        (Gone("reaped"), "Lost", EventKind.LOST),
        (CancelAsked("an operator said so"), "Cancelled", EventKind.CANCELLED),
    ],
    ids=["gone", "cancel asked"],
)
async def test_an_async_handler_is_broken_off_when_a_renewal_says_so(
    answer: Any, outcome: str, kind: EventKind
) -> None:
    cue, wire, told = Cue(), ScriptedWire("held", beat_s=0.02), Recorder()
    wire.script("renew", Renewed(), answer)
    seen: list[object] = []

    async def held(ctx: Context) -> None:
        try:
            await cue.here_async()
        finally:
            seen.append(ctx.lost)

    async with looping(wire, held, sink=told):
        work_id = await wire.enqueue({})
        await wire.settled(work_id)
        await eventually(lambda: kind in told.kinds())

    assert seen == [True]
    assert wire.outcomes(work_id) == [outcome]
    assert told.the(kind).error == answer.reason


async def test_a_lost_job_is_not_renewed_any_more() -> None:
    cue, wire = Cue(), ScriptedWire("stubborn", beat_s=0.01)
    wire.script("renew", Gone())

    def stubborn(ctx: Context) -> None:
        while not ctx.lost:
            pass
        cue.here()

    async with looping(wire, stubborn):
        work_id = await wire.enqueue({})
        await cue.is_reached()
        await wire.settled(work_id)
        assert wire.calls["renew"] == 1
        cue.go()


async def test_a_sync_handler_sees_that_it_is_lost_and_its_result_does_not_count() -> None:
    wire = ScriptedWire("loops", beat_s=0.02)
    wire.script("renew", Gone("reaped"))

    def loops(ctx: Context) -> str:
        while True:
            ctx.raise_if_lost()

    async with looping(wire, loops):
        work_id = await wire.enqueue({})
        await wire.settled(work_id)

    assert wire.outcomes(work_id) == ["Lost"]


@pytest.mark.parametrize("answer", [Unknown("timed out"), OSError("cut")], ids=repr)
async def test_a_renewal_without_answer_is_asked_again_and_ends_nothing(answer: Any) -> None:
    cue, wire = Cue(), ScriptedWire("held", beat_s=0.05)
    wire.script("renew", answer, answer, answer)

    async def held() -> None:
        await cue.here_async()

    async with looping(wire, held):
        work_id = await wire.enqueue({})
        await wire.until(lambda: wire.calls["renew"] >= 5)
        cue.go()
        await wire.over(work_id)

    assert wire.works[work_id].state is SettledKind.SUCCEEDED


async def test_an_answer_that_comes_late_does_not_overtake_another() -> None:
    """One renewal at a time: a store that answers slowly is not flooded."""
    cue, wire = Cue(), ScriptedWire("held", beat_s=0.01)
    gate, most, now = asyncio.Event(), 0, 0

    async def slow(call: str) -> None:
        nonlocal most, now
        if call == "renew":
            wire.calls[call] += 1
            now += 1
            most = max(most, now)
            await gate.wait()
            now -= 1

    wire.called = slow  # type: ignore[method-assign]

    async def held() -> None:
        await cue.here_async()

    async with looping(wire, held) as loop:
        work_id = await wire.enqueue({})
        await eventually(lambda: wire.calls["renew"] == 1)
        await asyncio.sleep(0.1)  # ten beats: none of them asks again
        assert wire.calls["renew"] == 1
        gate.set()
        cue.go()
        await eventually(lambda: loop.ended)

    assert most == 1
    assert wire.works[work_id].state is SettledKind.SUCCEEDED


async def test_a_process_that_was_frozen_takes_an_inferred_lease_for_lost() -> None:
    clock, cue = Clock(), Cue()
    wire = ScriptedWire("held", term_s=30, beat_s=10, proof=Proof.INFERRED)

    async def held() -> str:
        await cue.here_async()
        return "too late"

    async with looping(wire, shop=a_shop(held, clock=clock)):
        work_id = await wire.enqueue({})
        await cue.is_reached()
        clock.jumped_s += 40  # the handler ends in the very moment the process wakes
        cue.go()
        await wire.settled(work_id)

    assert wire.outcomes(work_id) == ["Lost"]


async def test_a_confirmed_lease_is_for_the_store_to_judge() -> None:
    clock, cue = Clock(), Cue()
    wire = ScriptedWire("held", term_s=30, beat_s=10, proof=Proof.CONFIRMED)

    async def held() -> None:
        await cue.here_async()

    async with looping(wire, shop=a_shop(held, clock=clock)):
        work_id = await wire.enqueue({})
        await cue.is_reached()
        clock.jumped_s += 40
        cue.go()
        await wire.settled(work_id)

    assert wire.outcomes(work_id) == ["Done"]


async def test_an_inferred_lease_that_no_beat_renewed_is_lost_in_the_middle_too() -> None:
    clock, cue = Clock(), Cue()
    wire = ScriptedWire("held", term_s=30, beat_s=10, proof=Proof.INFERRED)

    async def held() -> None:
        await cue.here_async()

    shop = a_shop(held, clock=clock)
    async with looping(wire, shop=shop):
        work_id = await wire.enqueue({})
        await cue.is_reached()
        clock.jumped_s += 31
        shop.ticker.sweep()
        await wire.settled(work_id)

    assert wire.calls["renew"] == 0
    assert wire.outcomes(work_id) == ["Lost"]


# Checkpoints ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["loop", "thread"])
async def test_a_checkpoint_that_is_refused_ends_the_run_as_lost(kind: str) -> None:
    wire = ScriptedWire("saves")
    wire.script("save", LeaseLost("another worker has it"))
    went_on = []

    async def in_loop(ctx: Context) -> None:
        await ctx.checkpoint({"n": 1})
        went_on.append(1)

    def in_thread(ctx: Context) -> None:
        ctx.checkpoint({"n": 1})
        went_on.append(1)

    async with looping(wire, task(in_loop if kind == "loop" else in_thread, name="saves")) as loop:
        work_id = await wire.enqueue({})
        await wire.settled(work_id)
        await eventually(lambda: not loop.running)

    assert wire.outcomes(work_id) == ["Lost"]
    assert wire.came_back["settle"] == 1  # it was told, and not cancelled on its way
    assert went_on == []


async def test_nothing_is_saved_by_a_process_that_was_frozen_beyond_its_lease() -> None:
    clock, cue = Clock(), Cue()
    wire = ScriptedWire("saves", term_s=30, beat_s=10, proof=Proof.INFERRED)

    async def saves(ctx: Context) -> None:
        await cue.here_async()
        await ctx.checkpoint("mine?")

    async with looping(wire, shop=a_shop(saves, clock=clock)):
        work_id = await wire.enqueue({})
        await cue.is_reached()
        clock.jumped_s += 40
        cue.go()
        await wire.settled(work_id)

    assert wire.calls["save"] == 0
    assert wire.outcomes(work_id) == ["Lost"]


async def test_a_checkpoint_that_fails_is_the_handlers_to_judge() -> None:
    wire = ScriptedWire("saves")
    wire.script("save", OSError("storage is full"))

    async def saves(ctx: Context) -> str:
        try:
            await ctx.checkpoint(1)
        except OSError:
            return "went on without"
        return "saved"

    async with looping(wire, saves):
        work_id = await wire.enqueue({})
        await wire.over(work_id)

    assert wire.works[work_id].settled_as[0].value == "went on without"  # type: ignore[union-attr]


async def test_progress_is_shown_at_once_thinned_out_and_to_the_end() -> None:
    wire, told = ScriptedWire("counts"), Recorder()

    async def counts(ctx: Context) -> None:
        for n in range(1, 1001):
            ctx.progress(n, 1000)
            if n % 100 == 0:
                await asyncio.sleep(0)

    async with looping(wire, counts, sink=told):
        work_id = await wire.enqueue({})
        await wire.over(work_id)

    shown = [note.done for note in wire.works[work_id].notes]
    assert shown[-1] == 1000
    assert len(shown) < 50
    kinds = told.kinds()
    assert kinds[0] is EventKind.STARTED
    assert kinds[-1] is EventKind.SUCCEEDED
    assert set(kinds[1:-1]) == {EventKind.PROGRESSED}


async def test_progress_that_cannot_be_kept_disturbs_nothing() -> None:
    wire = ScriptedWire("counts")
    wire.script("note", OSError("no"), OSError("no"))

    async def counts(ctx: Context) -> None:
        ctx.progress(1, 2)

    async with looping(wire, counts):
        await wire.over(await wire.enqueue({}))
