"""Watchdogs: a source that hears nothing although work waits, and a loop that somebody blocks."""

from __future__ import annotations

import asyncio
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from penstock.core.events import EventKind
from penstock.core.outcome import Done
from penstock.runtime.options import WorkerOptions
from penstock.runtime.watchdog import BlockWatch, DeafWatch
from penstock.runtime.worker import Worker
from tests.runtime.scripted import ScriptedDelivery, ScriptedSource, ScriptedWire
from tests.runtime.stage import Clock, Recorder, a_shop, eventually, looping, task, tasks


class DeafSource(ScriptedSource):
    """Its first take hears nothing, for ever: a pull that the server has forgotten."""

    deaf = True

    async def take(self, most: int, wait: timedelta) -> Sequence[ScriptedDelivery]:
        if self.deaf:
            self.deaf = False
            await asyncio.Event().wait()
        return await super().take(most, wait)


async def quick() -> None: ...


async def test_a_deaf_source_is_named_asked_anew_and_well_again_once_it_hears() -> None:
    clock, wire = Clock(), ScriptedWire("quick")
    source = DeafSource(wire)
    async with looping(wire, shop=a_shop(quick, clock=clock), sources=[source]) as loop:
        watch = DeafWatch(loop, 60, clock)
        await eventually(lambda: not source.deaf)
        work_id = await wire.enqueue({})
        assert await watch.look() == []

        clock.jumped_s += 61
        assert await watch.look() == ["scripted"]
        assert watch.deaf == {"scripted"}

        await wire.over(work_id)
        assert await watch.look() == []
        assert watch.deaf == frozenset()


async def test_who_was_deaf_is_well_once_nothing_waits_any_more() -> None:
    """Or a probe would end a worker that was cured, only because others did the work."""
    clock, wire = Clock(), ScriptedWire("quick")
    source = DeafSource(wire)
    async with looping(wire, shop=a_shop(quick, clock=clock), sources=[source]) as loop:
        watch = DeafWatch(loop, 60, clock)
        await eventually(lambda: not source.deaf)
        source.deaf = True  # and will be so once more
        work_id = await wire.enqueue({})
        clock.jumped_s += 61
        assert await watch.look() == ["scripted"]
        assert await watch.look() == []
        assert watch.deaf == {"scripted"}

        (delivery,) = await ScriptedSource(wire).take(1, timedelta(0))
        await delivery.settle(Done())
        await watch.look()

        assert wire.outcomes(work_id) == ["Done"]
        assert watch.deaf == frozenset()


async def test_silence_without_work_is_no_deafness() -> None:
    clock, wire = Clock(), ScriptedWire("quick")
    async with looping(wire, shop=a_shop(quick, clock=clock), sources=[DeafSource(wire)]) as loop:
        await eventually(lambda: loop.desks[0].seat.polling)
        clock.jumped_s += 3600

        assert await DeafWatch(loop, 60, clock).look() == []


@pytest.mark.parametrize("answer", [OSError("cut"), None], ids=["raises", "cannot tell"])
async def test_who_cannot_tell_what_waits_is_not_proven_deaf(answer: Any) -> None:
    clock, wire = Clock(), ScriptedWire("quick")

    class Mute(DeafSource):
        async def waiting(self) -> int | None:
            if answer is not None:
                raise answer
            return None

    async with looping(wire, shop=a_shop(quick, clock=clock), sources=[Mute(wire)]) as loop:
        await eventually(lambda: loop.desks[0].seat.polling)
        clock.jumped_s += 3600

        assert await DeafWatch(loop, 60, clock).look() == []


async def test_a_worker_with_full_hands_is_busy_not_deaf() -> None:
    clock, wire = Clock(), ScriptedWire("held")
    gate = asyncio.Event()

    async def held() -> None:
        await gate.wait()

    async with looping(wire, shop=a_shop(held, clock=clock), slots=1) as loop:
        ids = [await wire.enqueue({}) for _ in range(3)]
        await eventually(lambda: loop.running)
        clock.jumped_s += 3600

        assert await DeafWatch(loop, 60, clock).look() == []
        gate.set()
        await wire.over(*ids)


async def test_a_worker_that_is_deaf_says_so_and_cures_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.runtime.worker._PATROL_S", 0.01)
    wire, told = ScriptedWire("quick"), Recorder()
    options = WorkerOptions(signals=False, deaf_after=timedelta(seconds=0.2))
    source = DeafSource(wire)
    worker = Worker(tasks(quick), [source], (), options, told, protocols=["natq"])
    work_id = await wire.enqueue({})
    await worker.start()
    await wire.over(work_id)

    assert told.the(EventKind.WORKER_UNHEALTHY).note == "source scripted is deaf"
    await eventually(lambda: worker.health().ok)
    assert "hears nothing although work is waiting" in caplog.text
    await worker.stop()


# Blocked ----------------------------------------------------------------------------------


async def blocks_the_loop() -> None:
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        pass  # here


async def test_a_handler_that_blocks_the_loop_is_named_with_its_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wire, handler = ScriptedWire("blocks_the_loop"), task(blocks_the_loop)
    watch = BlockWatch(0.1, [handler])
    watch.start()
    async with looping(wire, handler):
        await wire.over(await wire.enqueue({}))
    watch.stop()

    (told,) = [r for r in caplog.records if r.name == "penstock.watchdog"]
    assert "task 'blocks_the_loop'" in told.getMessage()
    assert "test_watchdog.py:" in told.getMessage()
    assert "make the handler a plain def" in told.getMessage()
    assert told.taskId == "blocks_the_loop"  # type: ignore[attr-defined]
    assert watch.blocks == 1


async def test_what_is_no_task_is_told_by_its_place(caplog: pytest.LogCaptureFixture) -> None:
    watch = BlockWatch(0.05)
    watch.start()
    await asyncio.sleep(0.05)
    await blocks_the_loop()
    await eventually(lambda: watch.blocks)
    watch.stop()

    assert "something that is not a task" in caplog.text
    assert "test_watchdog.py:" in caplog.text


async def waits_for_a_program() -> None:
    subprocess.run(["sleep", "0.6"], capture_output=True, check=True)  # noqa: ASYNC221


async def test_a_handler_that_waits_for_another_program_blocks_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = task(waits_for_a_program)
    watch = BlockWatch(0.1, [handler])
    watch.start()
    await asyncio.sleep(0)
    await waits_for_a_program()
    await eventually(lambda: watch.blocks)
    watch.stop()

    assert "task 'waits_for_a_program'" in caplog.text


def selects(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    return frame is not None and frame.f_code.co_filename == selectors.__file__


async def test_a_process_that_gets_no_processor_blames_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The loop does not turn, but it is in its own select: it was not given the time to."""
    watch = BlockWatch(0.01)
    frames: dict[int, Any] = {}

    def loop_in_select() -> None:
        loop = asyncio.new_event_loop()
        frames[threading.get_ident()] = loop
        loop.run_forever()
        loop.close()

    thread = threading.Thread(target=loop_in_select)
    thread.start()
    await eventually(lambda: frames)
    ((watch._watched, loop),) = frames.items()
    await eventually(lambda: selects(watch._watched))
    watch._tell()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()

    assert watch.blocks == 0
    assert caplog.text == ""


async def test_a_loop_that_turns_is_not_told() -> None:
    watch = BlockWatch(30.0)
    watch.start()
    for _ in range(100):
        await asyncio.sleep(0)
    watch.stop()

    assert watch.blocks == 0
