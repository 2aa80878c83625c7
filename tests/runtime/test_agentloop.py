"""The agent loop: per lane in order, one batch at a time, one commit for many."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from penstock.core.delivery import Delivery, Gone, SettledKind, Unknown
from penstock.core.events import EventKind
from penstock.core.lease import Proof
from penstock.core.outcome import Done, Outcome
from penstock.runtime.agentloop import AgentLoop
from tests.runtime.scripted import ScriptedSource, ScriptedWire
from tests.runtime.stage import Clock, Recorder, a_shop, eventually

Decide = Callable[[Hashable, Sequence[Delivery]], Awaitable[Sequence[Outcome]]]


class Ledger:
    """A commit that remembers what it was given, and that can be held or told to fail."""

    def __init__(self) -> None:
        self.batches: list[tuple[Hashable, list[Any]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.faults: list[Exception] = []
        self.inside: dict[Hashable, int] = defaultdict(int)
        self.most = 0

    async def __call__(self, lane: Hashable, batch: Sequence[Delivery]) -> list[Outcome]:
        self.inside[lane] += 1
        self.most = max(self.most, self.inside[lane])
        self.batches.append((lane, [one.invocation.body["n"] for one in batch]))
        await self.gate.wait()
        self.inside[lane] -= 1
        if self.faults:
            raise self.faults.pop()
        return [Done(one.invocation.body["n"]) for one in batch]

    def of(self, lane: Hashable) -> list[Any]:
        return [n for where, ns in self.batches if where == lane for n in ns]


def by_entity(delivery: Delivery) -> Hashable:
    return str(delivery.invocation.body["entity"])


@asynccontextmanager
async def agents(
    wire: ScriptedWire, commit: Decide, *, lane: Any = by_entity, shop: Any = None, **more: Any
) -> AsyncIterator[AgentLoop]:
    loop = AgentLoop([ScriptedSource(wire)], lane, commit, shop or a_shop(), **more)
    await loop.start()
    try:
        yield loop
    finally:
        loop.force()
        await loop.stop(timedelta(0))


async def send(wire: ScriptedWire, count: int, *, entities: int = 1) -> list[str]:
    return [await wire.enqueue({"entity": f"e{n % entities}", "n": n}) for n in range(count)]


async def test_within_a_lane_work_is_committed_in_the_order_it_was_taken() -> None:
    wire, ledger = ScriptedWire("act"), Ledger()
    ids = await send(wire, 60, entities=3)
    async with agents(wire, ledger):
        await wire.over(*ids)

    for lane in range(3):
        assert ledger.of(f"e{lane}") == list(range(lane, 60, 3))
    assert ledger.most == 1


async def test_what_comes_during_a_commit_gathers_for_the_next_one() -> None:
    wire, ledger = ScriptedWire("act"), Ledger()
    ledger.gate.clear()
    async with agents(wire, ledger) as loop:
        first = await wire.enqueue({"entity": "e0", "n": 0})
        await eventually(lambda: ledger.batches)
        rest = [await wire.enqueue({"entity": "e0", "n": n}) for n in range(1, 20)]
        await eventually(lambda: loop.running == 20)
        ledger.gate.set()
        await wire.over(first, *rest)

    assert [ns for _, ns in ledger.batches] == [[0], list(range(1, 20))]


async def test_a_batch_has_a_limit() -> None:
    wire, ledger = ScriptedWire("act"), Ledger()
    ids = await send(wire, 25)
    async with agents(wire, ledger, batch=10):
        await wire.over(*ids)

    assert max(len(ns) for _, ns in ledger.batches) <= 10
    assert ledger.of("e0") == list(range(25))


async def test_a_slow_lane_does_not_hold_up_another() -> None:
    wire = ScriptedWire("act")
    never = asyncio.Event()

    async def commit(lane: Hashable, batch: Sequence[Delivery]) -> list[Outcome]:
        if lane == "e0":
            await never.wait()
        return [Done() for _ in batch]

    async with agents(wire, commit):
        slow, quick = await send(wire, 2, entities=2)
        await wire.over(quick)
        assert wire.works[slow].state is None
        never.set()
        await wire.over(slow)


async def test_a_commit_that_raises_fails_its_whole_batch_and_the_next_try_succeeds() -> None:
    wire, ledger, told = ScriptedWire("act"), Ledger(), Recorder()
    ledger.faults = [OSError("disk full")]
    ids = await send(wire, 5)
    async with agents(wire, ledger, shop=a_shop(sink=told)):
        await wire.over(*ids)

    assert [wire.works[i].attempt for i in ids] == [2] * 5
    assert told.kinds().count(EventKind.RETRIED) == 5
    assert told.kinds().count(EventKind.SUCCEEDED) == 5


async def test_a_commit_that_returns_too_few_outcomes_is_a_fault_and_not_a_guess() -> None:
    wire = ScriptedWire("act", max_attempts=1)

    async def commit(lane: Hashable, batch: Sequence[Delivery]) -> list[Outcome]:
        return []

    ids = await send(wire, 3)
    async with agents(wire, commit):
        await wire.over(*ids)

    assert {wire.works[i].state for i in ids} == {SettledKind.PARKED}


@pytest.mark.parametrize("answer", [Gone("moved"), Unknown("cut"), OSError("bug")], ids=repr)
async def test_settling_that_is_not_confirmed_does_not_stop_the_lane(answer: Any) -> None:
    wire, ledger = ScriptedWire("act"), Ledger()
    wire.script("settle", answer)
    ids = await send(wire, 4)
    async with agents(wire, ledger, batch=2):
        await wire.over(*ids[1:])

    assert len(wire.works[ids[0]].settled_as) == 1


async def test_settling_that_never_ends_is_given_up_and_the_lane_goes_on() -> None:
    wire, ledger = ScriptedWire("act"), Ledger()
    never = asyncio.Event()
    called = wire.called

    async def stuck_once(call: str) -> Any:
        if call == "settle" and not wire.calls["settle"]:
            wire.calls["settle"] += 1
            await never.wait()
        return await called(call)

    wire.called = stuck_once  # type: ignore[method-assign]
    ids = await send(wire, 3)
    async with agents(wire, ledger, batch=1, shop=a_shop(settle_within_s=0.05)):
        await wire.over(*ids[1:])


async def test_what_waits_in_a_lane_keeps_its_lease_and_what_was_lost_is_not_committed() -> None:
    wire, ledger = ScriptedWire("act", beat_s=0.02), Ledger()
    ledger.gate.clear()
    async with agents(wire, ledger) as loop:
        await wire.enqueue({"entity": "e0", "n": 0}, work_id="first")
        await eventually(lambda: ledger.batches)
        lost = await wire.enqueue({"entity": "e0", "n": 1}, work_id="lost")
        await eventually(lambda: loop.running == 2)
        await wire.until(lambda: wire.calls["renew"] > 4)
        wire.works[lost].fence = "somebody else's"
        jobs = list(loop._jobs)
        await eventually(lambda: any(job.verdict is not None for job in jobs))
        ledger.gate.set()
        await wire.settled("first", lost)

    assert ledger.batches == [("e0", [0])]
    assert wire.outcomes(lost) == ["Lost"]


async def test_a_frozen_process_settles_nothing_under_an_inferred_lease() -> None:
    clock, wire, ledger = Clock(), ScriptedWire("act", term_s=30, proof=Proof.INFERRED), Ledger()
    ledger.gate.clear()
    async with agents(wire, ledger, shop=a_shop(clock=clock)):
        (work_id,) = await send(wire, 1)
        await eventually(lambda: ledger.batches)
        clock.jumped_s += 40
        ledger.gate.set()
        await wire.settled(work_id)

    assert wire.outcomes(work_id) == ["Lost"]


async def test_a_drain_finishes_the_commit_under_way_and_gives_back_the_rest() -> None:
    wire, ledger = ScriptedWire("act"), Ledger()
    ledger.gate.clear()
    async with agents(wire, ledger, batch=1) as loop:
        ids = await send(wire, 5)
        await eventually(lambda: loop.running == 5)
        stopping = asyncio.create_task(loop.stop(timedelta(seconds=0.01)))
        await eventually(lambda: loop._giving_back)
        ledger.gate.set()
        await stopping

    assert wire.outcomes(ids[0]) == ["Done"]
    assert {*wire.outcomes(ids[1]), *wire.outcomes(ids[4])} == {"Interrupted"}
    assert [wire.works[i].attempt for i in ids] == [1] * 5


async def test_no_more_is_taken_than_may_be_in_hand() -> None:
    wire, ledger = ScriptedWire("act"), Ledger()
    ledger.gate.clear()
    async with agents(wire, ledger, in_hand=3) as loop:
        ids = await send(wire, 10)
        await eventually(lambda: loop.running == 3)
        assert sum(work.delivery for work in wire.works.values()) == 3
        ledger.gate.set()
        await wire.over(*ids)
        await eventually(lambda: loop._lanes == {})


async def test_a_delivery_without_a_lane_is_left_alone_and_costs_no_credit() -> None:
    wire, ledger = ScriptedWire("act", term_s=0.05), Ledger()
    unreadable = await wire.enqueue({"n": 0})
    async with agents(wire, ledger, in_hand=1):
        good = await wire.enqueue({"entity": "e0", "n": 1})
        await wire.until(lambda: wire.works[unreadable].delivery >= 1)
        await wire.until(lambda: wire.works[good].settled_as)

    assert wire.works[unreadable].settled_as == []
