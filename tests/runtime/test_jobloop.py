"""The job loop: whatever happens in a handler, an adapter or a source, it has one clear end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from penstock import Context, Continue, Reject, Retry, Snooze
from penstock.core.delivery import Gone, SettledKind, SourceLost, Unknown
from penstock.core.events import EventKind
from penstock.core.outcome import After, Done, Failed, Outcome, Snoozed, Word
from penstock.runtime.observe.metrics import Metrics
from tests.runtime.scripted import ScriptedSource, ScriptedWire
from tests.runtime.stage import Clock, Cue, Recorder, a_shop, eventually, looping, task


async def settled_as(handler: Any, body: Any = None, **options: Any) -> Outcome:
    """How the first run of ``handler`` was settled."""
    wire = ScriptedWire("act")
    async with looping(wire, task(handler, **{"name": "act", **options})):
        work_id = await wire.enqueue({} if body is None else body)
        await wire.settled(work_id)
        return wire.works[work_id].settled_as[0]


# What handlers say ------------------------------------------------------------------------


async def test_a_value_is_done_and_ready_for_json() -> None:
    async def act(n: int) -> dict[str, Any]:
        return {"n": n, "took": timedelta(seconds=1)}

    assert await settled_as(act, {"n": 2}) == Done({"n": 2, "took": "PT1S"})


@pytest.mark.parametrize("where", ["loop", "thread"])
@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (Retry(after=3), After(timedelta(seconds=3))),
        (Retry(), Word.BY_POLICY),
        (Reject("no"), Word.NEVER),
        (ValueError("broken"), Word.BY_POLICY),
        (SystemExit(3), Word.BY_POLICY),
        (asyncio.CancelledError(), Word.BY_POLICY),
        (StopIteration(), Word.BY_POLICY),
    ],
    ids=repr,
)
async def test_whatever_is_raised_becomes_a_failure_with_its_verdict(
    said: BaseException, verdict: Any, where: str
) -> None:
    async def in_loop() -> None:
        raise said

    def in_thread() -> None:
        raise said

    outcome = await settled_as(in_loop if where == "loop" else in_thread)

    assert isinstance(outcome, Failed)
    assert outcome.verdict == verdict


async def test_verbs_may_be_returned_as_well_as_raised() -> None:
    async def act() -> Snooze:
        return Snooze(60, checkpoint=[1])

    assert await settled_as(act) == Snoozed(timedelta(seconds=60), [1])


async def test_input_that_does_not_fit_is_rejected_with_the_path() -> None:
    async def act(width: int) -> None: ...

    outcome = await settled_as(act, {"width": "wide"})

    assert isinstance(outcome, Failed)
    assert outcome.verdict is Word.NEVER
    assert "$.width" in outcome.failure.message


async def test_a_result_that_json_cannot_say_is_a_failure() -> None:
    async def act() -> Any:
        return {"ratio": float("nan")}

    outcome = await settled_as(act)

    assert isinstance(outcome, Failed)
    assert "$.ratio" in outcome.failure.message


async def test_a_handler_that_continues_goes_on_where_it_was() -> None:
    seen: list[tuple[int, Any]] = []

    async def act(ctx: Context) -> str:
        seen.append((ctx.iteration, ctx.saved))
        if ctx.iteration < 3:
            raise Continue({"page": ctx.iteration + 1})
        return "all pages"

    wire = ScriptedWire("act")
    async with looping(wire, act):
        work_id = await wire.enqueue({})
        await wire.over(work_id)

    assert seen == [(0, None), (1, {"page": 1}), (2, {"page": 2}), (3, {"page": 3})]
    assert wire.works[work_id].attempt == 1


async def test_a_failing_handler_runs_again_and_knows_which_attempt_it_is() -> None:
    attempts = []

    async def act(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise OSError("not yet")

    wire = ScriptedWire("act")
    async with looping(wire, act):
        await wire.over(await wire.enqueue({}))

    assert attempts == [1, 2, 3]


async def test_work_for_a_task_nobody_declared_fails_with_the_nearest_name() -> None:
    async def resize() -> None: ...

    wire = ScriptedWire()
    async with looping(wire, resize):
        work_id = await wire.enqueue({}, task="rezise")
        await wire.settled(work_id)

    outcome = wire.works[work_id].settled_as[0]
    assert isinstance(outcome, Failed)
    assert outcome.failure.code == "task.unknown"
    assert outcome.verdict is Word.BY_POLICY  # another worker may have it


async def test_a_handler_that_cancels_itself_does_not_strike_its_own_settling() -> None:
    async def act() -> str:
        this = asyncio.current_task()
        assert this is not None
        this.cancel()
        return "and returned"

    wire = ScriptedWire("act")
    async with looping(wire, act):
        work_id = await wire.enqueue({})
        await wire.over(work_id)

    assert wire.outcomes(work_id) == ["Done"]


# What adapters do -------------------------------------------------------------------------


async def ok() -> str:
    return "ok"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Gone("another has it"), EventKind.LOST),
        (Unknown("the answer was lost"), EventKind.SUCCEEDED),
        (RuntimeError("a broken adapter"), EventKind.SUCCEEDED),
    ],
    ids=repr,
)
async def test_settling_that_is_not_confirmed_is_told_and_frees_the_slot(
    answer: Any, kind: EventKind, caplog: pytest.LogCaptureFixture
) -> None:
    wire, told = ScriptedWire("ok"), Recorder()
    wire.script("settle", answer)
    async with looping(wire, ok, slots=1, sink=told) as loop:
        first = await wire.enqueue({}, work_id="first")
        await wire.settled(first)
        second = await wire.enqueue({}, work_id="second")
        await wire.over(second)
        await eventually(lambda: not loop.running)

    assert told.kinds("first") == [EventKind.STARTED, kind]
    assert len(wire.works["first"].settled_as) == 1  # never repeated blindly
    assert any("not settled" in r.message and r.runId == "first" for r in caplog.records)


async def test_settling_that_never_ends_is_given_up() -> None:
    wire = ScriptedWire("ok")
    never = asyncio.Event()

    async def forever(call: str) -> None:
        if call == "settle":
            await never.wait()

    wire.called = forever  # type: ignore[method-assign]
    async with looping(wire, ok, settle_within_s=0.05) as loop:
        await wire.enqueue({})
        await eventually(lambda: loop.ended == 1)

        assert loop.running == 0
        assert loop.free + sum(d.seat.polling for d in loop.desks) == 8


async def test_a_delivery_that_cannot_be_read_costs_nothing_but_itself() -> None:
    wire = ScriptedWire("ok")
    wire.script("take", [object()])
    async with looping(wire, ok, slots=1):
        await wire.over(await wire.enqueue({}))


@pytest.mark.parametrize("fault", [SourceLost("deleted"), RuntimeError("a bug")], ids=repr)
async def test_a_source_that_fails_is_asked_again_and_leaves_the_others_alone(
    fault: Exception,
) -> None:
    bad, good = ScriptedWire("ok"), ScriptedWire("ok")
    bad.script("take", fault, fault)
    sources = [ScriptedSource(bad, "bad"), ScriptedSource(good, "good")]
    async with looping(good, ok, sources=list(sources)) as loop:
        await eventually(lambda: loop.desks[0].lost)
        await good.over(await good.enqueue({}))
        await bad.over(await bad.enqueue({}))

        assert not loop.desks[0].lost
    assert bad.calls["take"] >= 3


# How much is taken ------------------------------------------------------------------------


async def test_no_more_is_taken_than_can_start_at_once() -> None:
    cue, wire = Cue(), ScriptedWire("held")

    async def held() -> None:
        await cue.here_async()

    ids = [await wire.enqueue({}) for _ in range(10)]
    async with looping(wire, held, slots=3) as loop:
        await cue.is_reached(3)
        assert loop.running == 3
        assert loop.free == 0
        assert sum(work.delivery for work in wire.works.values()) == 3

        cue.go()
        await wire.over(*ids)
        most = max(wire.asked)

    assert most <= 3


async def test_a_task_with_a_limit_of_its_own_takes_no_more_than_that() -> None:
    cue, wire = Cue(), ScriptedWire("held")

    async def held() -> None:
        await cue.here_async()

    ids = [await wire.enqueue({}) for _ in range(6)]
    async with looping(wire, task(held, concurrency=2), slots=8) as loop:
        await cue.is_reached(2)
        assert (loop.running, loop.free) == (2, 6)
        cue.go()
        await wire.over(*ids)
        assert max(wire.asked) <= 2


async def test_no_more_is_taken_for_threads_or_processes_than_there_are() -> None:
    cue = Cue()

    def first() -> None:
        cue.here()

    def second() -> None:
        cue.here()

    async def third() -> None: ...

    wires = {name: ScriptedWire(name) for name in ("first", "second", "third")}
    ids = {name: [await wire.enqueue({}) for _ in range(5)] for name, wire in wires.items()}
    sources = [ScriptedSource(wire) for wire in wires.values()]
    shop = a_shop(first, second, third, threads=2)
    async with looping(wires["first"], shop=shop, sources=list(sources)) as loop:
        await wires["third"].over(*ids["third"])  # those on the loop need no thread
        await cue.is_reached(2)
        held = sum(w.delivery for n in ("first", "second") for w in wires[n].works.values())
        assert held == 2
        cue.go()
        for name, wire in wires.items():
            await wire.over(*ids[name])
        await eventually(lambda: not loop.running)


async def test_time_that_is_spent_waiting_for_a_thread_does_not_count() -> None:
    cue, clock, wire = Cue(), Clock(), ScriptedWire(term_s=3600, beat_s=10)

    def slow() -> None:
        cue.here()

    def brief() -> str:
        return "in time"

    shop = a_shop(slow, task(brief, timeout=60), threads=1, clock=clock)
    async with looping(wire, shop=shop) as loop:
        blocking = await wire.enqueue({}, task="slow")
        await cue.is_reached()
        waiting = await wire.enqueue({}, task="brief")
        await eventually(lambda: loop.running == 2)
        clock.jumped_s += 120
        shop.ticker.sweep()
        await wire.until(lambda: wire.came_back["renew"] >= 2)  # its lease is kept meanwhile
        cue.go()
        await wire.over(blocking, waiting)

    assert wire.outcomes(waiting) == ["Done"]


async def test_on_a_source_of_many_tasks_a_limited_one_waits_in_hand_and_others_run() -> None:
    cue, wire = Cue(), ScriptedWire(beat_s=0.02)
    most = now = 0

    async def narrow() -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await cue.here_async()
        now -= 1

    async def wide() -> None: ...

    limited = [await wire.enqueue({}, task="narrow") for _ in range(3)]
    async with looping(wire, task(narrow, concurrency=1), wide) as loop:
        await cue.is_reached()
        free = await wire.enqueue({}, task="wide")
        await wire.over(free)
        await eventually(lambda: loop.running == 3)
        seen = wire.calls["renew"]
        await eventually(lambda: wire.calls["renew"] > seen + 6)  # those that wait are kept too
        cue.go()
        await wire.over(*limited)

    assert most == 1


async def test_limited_work_that_waits_in_hand_is_given_back_by_a_drain() -> None:
    cue, wire = Cue(), ScriptedWire()

    async def narrow() -> None:
        await cue.here_async()

    for name in ("runs", "waits"):
        await wire.enqueue({}, task="narrow", work_id=name)
    async with looping(wire, task(narrow, concurrency=1)) as loop:
        await eventually(lambda: loop.running == 2)
        await cue.is_reached()
        stopping = asyncio.create_task(loop.stop(timedelta(seconds=30)))
        await wire.settled("waits")
        cue.go()
        await stopping

    assert wire.outcomes("waits") == ["Interrupted"]
    assert wire.works["waits"].attempt == 1
    assert wire.works["runs"].state is SettledKind.SUCCEEDED


async def test_a_thousand_jobs_leave_nothing_behind() -> None:
    wire, metrics = ScriptedWire("ok"), Metrics()
    ids = [await wire.enqueue({}) for _ in range(1000)]
    shop = a_shop(ok)
    shop.report.metrics = metrics
    before = len(asyncio.all_tasks())
    async with looping(wire, shop=shop, slots=64) as loop:
        await wire.over(*ids)
        await eventually(lambda: not loop.running)
        assert len(shop.ticker) == 0
        assert len(asyncio.all_tasks()) == before + 1  # its puller
    assert metrics.counts() == {("natq", "ok", "succeeded"): 1000}
    assert len(asyncio.all_tasks()) == before
