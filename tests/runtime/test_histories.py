"""Random histories: whatever sources, stores and handlers do, all work ends, once, and no slot,
task or credit is lost on the way."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from penstock import Context, Continue, Retry, Snooze
from penstock.core.context import LeaseLost
from penstock.core.delivery import CancelAsked, Gone, SettledKind, SourceLost, Unknown
from penstock.core.lease import Proof
from penstock.runtime.jobloop import JobLoop
from tests.runtime.scripted import ScriptedSource, ScriptedWire
from tests.runtime.stage import a_shop, eventually, task, tasks

SLOTS, SOURCES, JOBS = 6, 3, 40
TERM_S = 0.6

FAULTS: dict[str, list[Any]] = {
    "take": [SourceLost("deleted"), RuntimeError("a bug"), []],
    "renew": [Gone("reaped"), Unknown("cut"), OSError("cut"), CancelAsked("by an operator")],
    "settle": [Gone("taken"), Unknown("never sent"), OSError("a bug")],
    "settled": [Unknown("the answer was lost")],
    "save": [LeaseLost("taken"), OSError("full")],
    "note": [OSError("no")],
    "waiting": [OSError("cut")],
}


class Fickle(ScriptedWire):
    """Misbehaves at one call in ``one_in``, by the dice."""

    def __init__(self, dice: Random, one_in: int, proof: Proof) -> None:
        super().__init__("", term_s=TERM_S, beat_s=0.05, proof=proof, max_attempts=1_000)
        self.dice = dice
        self.one_in = one_in

    async def called(self, call: str) -> Any:
        await super().called(call)
        for _ in range(self.dice.randrange(4)):
            await asyncio.sleep(0)
        if self.one_in and self.dice.randrange(self.one_in) == 0 and call in FAULTS:
            fault = self.dice.choice(FAULTS[call])
            if isinstance(fault, BaseException):
                raise fault
            return fault
        return None


def handlers(dice: Random) -> list[Any]:
    async def brief() -> None:
        await asyncio.sleep(dice.random() * 0.02)

    async def long(ctx: Context) -> None:
        for page in range(ctx.saved or 0, 4):
            await asyncio.sleep(0.03)
            ctx.progress(page, 4)
            await ctx.checkpoint(page + 1)

    def threaded(ctx: Context) -> None:
        for _ in range(5):
            time.sleep(0.01)
            ctx.raise_if_lost()

    async def moody(ctx: Context) -> str:
        if ctx.delivery < 3:
            raise dice.choice([Retry("once more"), Snooze(0.01), Continue(1), OSError("flaky")])
        return "at last"

    async def stubborn() -> None:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)

    return [brief, long, threaded, task(moody, concurrency=2), stubborn, task(brief, name="quick")]


async def live(seed: int, one_in: int, proof: Proof) -> None:
    dice = Random(seed)
    wire = Fickle(dice, one_in, proof)
    declared = tasks(*handlers(dice))
    shop = a_shop(*declared.values(), threads=2)
    sources = [ScriptedSource(wire, f"source-{n}") for n in range(SOURCES)]
    before = asyncio.all_tasks()
    ids = [await wire.enqueue({}, task=dice.choice(sorted(declared))) for _ in range(JOBS)]
    loop = JobLoop(list(sources), shop, slots=SLOTS, idle_wait=timedelta(seconds=0.1))
    await loop.start()

    def all_ended() -> bool:
        assert loop.running + loop.zombies <= SLOTS
        assert 0 <= loop.free <= SLOTS
        return all(wire.works[i].state for i in ids)

    await eventually(all_ended, within_s=100)
    wire.one_in = 0
    await eventually(lambda: not loop.running and not loop.zombies, within_s=60)
    await loop.stop(timedelta(seconds=5))

    good = {SettledKind.SUCCEEDED, SettledKind.CANCELLED}
    assert {wire.works[i].state for i in ids} <= good
    assert loop.free == SLOTS
    assert all((desk.seat.held, desk.seat.polling) == (0, 0) for desk in loop.desks)
    assert len(shop.ticker) == 0
    shop.offload.stop()
    await eventually(lambda: asyncio.all_tasks() == before)


@pytest.mark.parametrize("proof", Proof)
@pytest.mark.parametrize("seed", range(2))
async def test_all_work_ends_once_whatever_happens(seed: int, proof: Proof) -> None:
    await live(seed, 12, proof)


@pytest.mark.slow
@pytest.mark.parametrize("proof", Proof)
@pytest.mark.parametrize("one_in", [3, 6, 12, 40])
@pytest.mark.parametrize("seed", range(100, 110))
async def test_all_work_ends_once_whatever_happens_at_length(
    seed: int, one_in: int, proof: Proof
) -> None:
    await live(seed, one_in, proof)


async def ended(loop: JobLoop, count: int) -> None:
    await eventually(lambda: loop.ended >= count)


async def drained(seed: int) -> None:
    """Two workers in turn on one store; the first is told to stop at some moment."""
    dice = Random(seed)
    wire = ScriptedWire("", term_s=60, max_attempts=1_000)
    kinds = ["brief", "long", "threaded", "stubborn"]
    ids = [await wire.enqueue({}, task=dice.choice(kinds)) for _ in range(JOBS)]
    for grace_s in (dice.choice([0, 0.02, 0.1]), 60):
        shop = a_shop(*handlers(dice), threads=3)
        loop = JobLoop([ScriptedSource(wire)], shop, slots=SLOTS)
        await loop.start()
        if grace_s == 60:
            await wire.over(*ids)
        else:
            await ended(loop, dice.randrange(1, JOBS))
        await loop.stop(timedelta(seconds=grace_s))
        shop.offload.stop()
        left = [wire.works[i] for i in ids if not wire.works[i].state]
        assert all(work.lapses == 0 for work in left)  # given back, not left to its lease

    assert {wire.works[i].state for i in ids} == {SettledKind.SUCCEEDED}
    assert {wire.works[i].attempt for i in ids} == {1}


@pytest.mark.parametrize("seed", range(5))
async def test_a_drain_at_any_moment_loses_nothing_and_spends_no_attempt(seed: int) -> None:
    await drained(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
async def test_a_drain_at_any_moment_at_length(seed: int) -> None:
    await drained(seed)
