"""Processes for cpu=True handlers: fresh interpreters that fail alone and never outlive us."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock import Context
from penstock.core.context import LeaseLost
from penstock.core.delivery import CancelAsked
from penstock.core.events import EventKind
from penstock.core.outcome import After, Done, Failed, Outcome, Word
from penstock.runtime.processes import Processes, _Child
from tests.runtime import handlers
from tests.runtime.programs import gone, running
from tests.runtime.scripted import ScriptedWire
from tests.runtime.stage import Recorder, a_shop, eventually, looping, task


class Back:
    """The far end of a context, for handlers that ask nothing of it."""

    worker_id, stopped = "ann", ""

    def note(self, progress: Any) -> None: ...

    def save(self, value: Any) -> Any: ...


async def settled_as(handler: Any, body: Any = None) -> Outcome:
    wire = ScriptedWire("act", max_attempts=1)
    async with looping(wire, task(handler, name="act", cpu=True)):
        work_id = await wire.enqueue(body or {})
        await wire.settled(work_id)
        return wire.works[work_id].settled_as[0]


async def test_a_handler_runs_in_another_process_that_is_kept_for_the_next() -> None:
    wire = ScriptedWire("pid")
    async with looping(wire, task(handlers.pid, cpu=True)):
        ids = [await wire.enqueue({}) for _ in range(4)]
        await wire.over(*ids)

    pids = {wire.works[i].settled_as[0].value for i in ids}  # type: ignore[union-attr]
    assert len(pids) == 1
    assert os.getpid() not in pids
    assert gone(*pids)


async def test_verdicts_cross_with_all_they_say() -> None:
    outcome = await settled_as(handlers.refuse, {"reason": "no"})

    assert isinstance(outcome, Failed)
    assert outcome.verdict is Word.NEVER
    failure = outcome.failure
    assert (failure.code, failure.status, failure.data) == ("too_big", 413, {"limit": 1})
    later = await settled_as(handlers.again)
    assert isinstance(later, Failed)
    assert isinstance(later.verdict, After)


@pytest.mark.parametrize(
    ("handler", "how"),
    [
        (handlers.die, "SIGKILL"),
        (handlers.leave, "exit code 7"),
        (handlers.crash, "SIGABRT"),
    ],
)
async def test_a_child_that_dies_fails_its_job_clearly_and_the_pool_goes_on(
    handler: Any, how: str
) -> None:
    wire = ScriptedWire(max_attempts=1)
    deadly = task(handler, name="deadly", cpu=True)
    async with looping(wire, deadly, task(handlers.square, cpu=True)):
        died = await wire.enqueue({}, task="deadly")
        await wire.over(died)
        after = await wire.enqueue({"n": 3}, task="square")
        await wire.over(after)

    outcome = wire.works[died].settled_as[0]
    assert isinstance(outcome, Failed)
    assert outcome.failure.code == "process_died"
    assert how in outcome.failure.message
    assert wire.works[after].settled_as == [Done(9)]


async def test_a_child_that_was_killed_while_idle_costs_no_job() -> None:
    wire = ScriptedWire("pid", max_attempts=1)
    async with looping(wire, task(handlers.pid, cpu=True)):
        first = await wire.enqueue({})
        await wire.over(first)
        idle = wire.works[first].settled_as[0].value  # type: ignore[union-attr]
        os.kill(idle, signal.SIGKILL)
        await eventually(lambda: psutil.Process(idle).status() == psutil.STATUS_ZOMBIE)
        second = await wire.enqueue({})
        await wire.over(second)

    assert wire.outcomes(second) == ["Done"]


async def test_an_exit_within_the_handler_is_its_failure_and_not_the_childs_end() -> None:
    outcome = await settled_as(handlers.exit_politely)

    assert isinstance(outcome, Failed)
    assert outcome.failure.type == "SystemExit"


async def test_what_cannot_cross_is_named_with_a_remedy() -> None:
    def local() -> None: ...

    there = await settled_as(local)
    back = await settled_as(handlers.boast)

    for outcome in (there, back):
        assert isinstance(outcome, Failed)
        assert outcome.failure.code == "process.unpicklable"


async def test_a_context_works_in_the_child_and_reports_to_this_side() -> None:
    wire, told = ScriptedWire("ask"), Recorder()
    async with looping(wire, task(handlers.ask_context, name="ask", cpu=True), sink=told):
        work_id = await wire.enqueue({})
        await wire.over(work_id)

    said = wire.works[work_id].settled_as[0].value  # type: ignore[union-attr]
    assert said == {"run": work_id, "attempt": 1, "worker": "ann", "saved": None}
    assert told.the(EventKind.PROGRESSED).note == "half"


async def test_a_checkpoint_from_the_child_is_kept_when_the_call_returns() -> None:
    wire = ScriptedWire("save")
    async with looping(wire, task(handlers.save, cpu=True)):
        work_id = await wire.enqueue({"value": 41})
        await wire.over(work_id)

    kept = wire.works[work_id].checkpoint
    assert kept is not None
    assert kept.value == 41


@pytest.mark.parametrize("kind", ["loop", "thread", "process"])
async def test_a_handler_that_a_drain_stops_may_still_save_where_it_is(
    kind: str, tmp_path: Path
) -> None:
    inside = tmp_path / "inside"

    async def in_loop(ctx: Context, gate: str) -> None:
        open(gate, "w").close()  # noqa: ASYNC230, PTH123
        try:
            await asyncio.sleep(3600)
        finally:
            await ctx.checkpoint({"page": 7})

    made = {
        "loop": task(in_loop, name="pages"),
        "thread": task(handlers.save_when_told, name="pages"),
        "process": task(handlers.save_when_told, name="pages", cpu=True),
    }
    wire = ScriptedWire("pages")
    async with looping(wire, made[kind]) as loop:
        work_id = await wire.enqueue({"gate": str(inside)})
        await eventually(inside.exists)
        await loop.stop(timedelta(0))

    kept = wire.works[work_id].checkpoint
    assert kept is not None
    assert kept.value == {"page": 7}
    assert wire.outcomes(work_id) == ["Interrupted"]
    assert wire.works[work_id].attempt == 1


async def test_a_checkpoint_that_is_refused_is_a_lost_lease_in_the_child_too() -> None:
    wire = ScriptedWire("save", max_attempts=1)
    wire.script("save", LeaseLost("another worker has it"))
    async with looping(wire, task(handlers.save, cpu=True)):
        work_id = await wire.enqueue({"value": 1})
        await wire.settled(work_id)

    assert wire.outcomes(work_id) == ["Lost"]


async def test_a_cancelled_handler_is_killed_with_its_child() -> None:
    wire = ScriptedWire("spin", beat_s=0.05)
    async with looping(wire, task(handlers.spin_forever, name="spin", cpu=True)) as loop:
        work_id = await wire.enqueue({})
        await eventually(lambda: loop.running)
        wire.script("renew", CancelAsked("an operator said so"))
        await wire.over(work_id)
        await eventually(lambda: loop.free + loop.desks[0].seat.polling == 8)

    assert wire.outcomes(work_id) == ["Cancelled"]


async def test_a_drain_tells_the_child_first_and_what_it_finished_counts(tmp_path: Path) -> None:
    wire, gate = ScriptedWire("heed"), tmp_path / "gate"
    async with looping(wire, task(handlers.heed, cpu=True)) as loop:
        work_id = await wire.enqueue({"gate": str(gate)})
        await eventually(lambda: gate.exists() and gate.read_text())
        await loop.stop(timedelta(0))

    assert wire.works[work_id].settled_as == [Done("stopped in time")]


async def test_as_many_children_as_allowed_work_side_by_side(tmp_path: Path) -> None:
    wire = ScriptedWire("heed", beat_s=0.05)
    gates = [tmp_path / str(n) for n in range(2)]
    async with looping(wire, shop=a_shop(task(handlers.heed, cpu=True), processes=2)):
        for gate in gates:
            await wire.enqueue({"gate": str(gate)})
        await eventually(lambda: all(gate.exists() and gate.read_text() for gate in gates))
        assert len({gate.read_text() for gate in gates}) == 2


async def test_a_child_that_is_killed_as_its_handler_ends_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes, run = Processes(1), _Child.run

    def run_and_be_given_up(child: _Child, work: Any, back: Any) -> Outcome:
        outcome = run(child, work, back)
        monkeypatch.setattr(_Child, "run", run)
        call.abandon()
        return outcome

    monkeypatch.setattr(_Child, "run", run_and_be_given_up)
    call = processes.submit(handlers.square, (2,), {}, Back())
    await call.wait()

    assert await processes.submit(handlers.square, (3,), {}, Back()).wait() == Done(9)
    processes.stop()


async def test_a_pool_that_was_stopped_has_no_children_left() -> None:
    processes = Processes(1)

    assert await processes.submit(handlers.square, (2,), {}, Back()).wait() == Done(4)
    assert await processes.submit(handlers.square, (3,), {}, Back()).wait() == Done(9)
    (pid,) = processes.pids()
    processes.stop()
    assert not psutil.pid_exists(pid)  # not even a zombie
    assert processes.pids() == []


def test_children_do_not_outlive_a_killed_worker() -> None:
    program = """
        import asyncio
        from penstock.runtime.processes import Processes
        from tests.runtime import handlers

        class Back:
            worker_id, stopped = "ann", ""

        async def main():
            processes = Processes(1)
            first = await processes.submit(handlers.pid, (), {}, Back()).wait()
            print("child", first.value, flush=True)
            await processes.submit(handlers.spin_forever, (), {}, Back()).wait()

        asyncio.run(main())
    """
    with running(program) as ran:
        child = int(ran.wait_for("child").split()[-1])
        assert psutil.pid_exists(child)

        ran.send(signal.SIGKILL)

        assert gone(child)


def test_handlers_of_the_programs_own_file_are_found_by_the_child(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(
        """
import asyncio
from penstock.runtime.processes import Processes

def double(n: int) -> int:
    return 2 * n

class Back:
    worker_id, stopped = "ann", ""

async def main():
    processes = Processes(1)
    print("doubled", (await processes.submit(double, (21,), {}, Back()).wait()).value, flush=True)
    processes.stop()

if __name__ == "__main__":
    asyncio.run(main())
"""
    )
    ran = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "doubled 42" in ran.stdout
