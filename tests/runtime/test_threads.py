"""Threads for sync handlers: few, reused, daemons; whatever a handler raises comes back."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from penstock import Context
from penstock.core.context import LeaseLost
from penstock.core.events import EventKind
from penstock.runtime.threads import Threads
from tests.runtime.programs import running
from tests.runtime.scripted import ScriptedWire
from tests.runtime.stage import Cue, Recorder, eventually, looping, task


async def test_values_and_exceptions_come_back_to_the_loop() -> None:
    threads = Threads(2)

    assert await threads.submit(lambda: threading.current_thread().name).wait() != "MainThread"
    with pytest.raises(ZeroDivisionError):
        await threads.submit(lambda: 1 // 0).wait()
    threads.stop()


async def test_threads_are_started_only_when_needed_and_reused() -> None:
    threads, names = Threads(8), set()
    for _ in range(5):
        names.add(await threads.submit(lambda: threading.current_thread().name).wait())
        await eventually(lambda: threads._idle == len(threads._threads))

    assert names == {"penstock-1"}
    threads.stop()


async def test_there_are_never_more_than_the_size() -> None:
    threads, cue = Threads(3), Cue()
    calls = [threads.submit(cue.here) for _ in range(10)]
    await cue.is_reached(3)

    assert len(threads._threads) == 3
    assert cue.reached == 3
    cue.go()
    await asyncio.gather(*(call.wait() for call in calls))
    assert cue.reached == 10
    threads.stop()


async def test_after_stop_all_threads_end() -> None:
    threads = Threads(3)
    await asyncio.gather(*(threads.submit(lambda: None).wait() for _ in range(6)))

    threads.stop()

    await eventually(lambda: not any(thread.is_alive() for thread in threads._threads))


async def test_a_call_that_was_given_up_in_the_queue_never_starts() -> None:
    threads, cue, ran = Threads(1), Cue(), []
    first = threads.submit(cue.here)
    second = threads.submit(lambda: ran.append(1))
    second.abandon()
    cue.go()
    await first.wait()
    await second.wait()

    assert ran == []
    threads.stop()


async def test_context_variables_of_the_run_are_kept() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who")
    threads = Threads(1)
    who.set("ann")
    call = threads.submit(who.get)
    who.set("bob")

    assert await call.wait() == "ann"
    threads.stop()


async def test_a_sync_handler_reports_and_saves_through_its_context() -> None:
    wire, told = ScriptedWire("works"), Recorder()
    seen: dict[str, Any] = {}

    def works(ctx: Context) -> str:
        seen.update(run=ctx.run_id, worker=ctx.worker_id, saved=ctx.saved)
        ctx.progress(1, 2, "half")
        ctx.checkpoint({"n": 1})  # kept when it returns
        seen["kept"] = wire.works[ctx.run_id].checkpoint
        return "done"

    async with looping(wire, works, sink=told):
        work_id = await wire.enqueue({})
        await wire.over(work_id)
        await eventually(lambda: EventKind.PROGRESSED in told.kinds(work_id))

    assert (seen["run"], seen["worker"], seen["saved"]) == (work_id, "ann", None)
    assert seen["kept"].value == {"n": 1}


async def test_a_checkpoint_that_fails_raises_where_the_handler_is() -> None:
    wire = ScriptedWire("saves")
    wire.script("save", OSError("storage is full"))

    def saves(ctx: Context) -> str:
        try:
            ctx.checkpoint(1)
        except OSError as error:
            return str(error)
        return "saved"

    async with looping(wire, saves):
        work_id = await wire.enqueue({})
        await wire.over(work_id)

    assert wire.works[work_id].settled_as[0].value == "storage is full"  # type: ignore[union-attr]


async def test_a_thread_that_was_given_up_can_save_nothing_any_more() -> None:
    wire, gate, refused = ScriptedWire("late", max_attempts=1), threading.Event(), []

    def late(ctx: Context) -> None:
        gate.wait(30)
        try:
            ctx.checkpoint("of a run that is over")
        except LeaseLost as error:
            refused.append(str(error))

    async with looping(wire, task(late, timeout=0.05)) as loop:
        work_id = await wire.enqueue({})
        await wire.over(work_id)
        await eventually(lambda: loop.zombies)
        gate.set()
        await eventually(lambda: not loop.zombies)

    assert wire.works[work_id].checkpoint is None
    assert "this run is over" in refused[0]


def test_a_thread_that_never_ends_does_not_keep_the_program_alive() -> None:
    program = """
        import asyncio, threading
        from penstock.runtime.threads import Threads

        async def main():
            began = threading.Event()
            def forever():
                began.set()
                threading.Event().wait()
            Threads(1).submit(forever)
            await asyncio.to_thread(began.wait)
            print("leaving", flush=True)

        asyncio.run(main())
    """
    with running(program) as ran:
        assert ran.ended() == 0
        assert "leaving" in ran.text
