"""The worker: one life from created to stopped, and a drain that loses and spends nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Context, Snooze
from penstock.core.delivery import SettledKind
from penstock.core.errors import ConfigError
from penstock.core.events import EventKind
from penstock.core.outcome import Interrupted
from penstock.runtime.options import ExitCode, WorkerOptions
from penstock.runtime.worker import Worker, WorkerState
from tests.runtime import handlers
from tests.runtime.scripted import ScriptedSource, ScriptedWire
from tests.runtime.stage import Cue, Recorder, eventually, task, tasks
from tests.runtime.test_requestloop import Door

SOON = timedelta(milliseconds=50)


def a_worker(
    wire: ScriptedWire, *declared: Any, door: Door | None = None, sink: Any = None, **options: Any
) -> Worker:
    chosen = {"signals": False, "idle_wait": SOON, "concurrency": 8, "processes": 1, **options}
    return Worker(
        tasks(*declared),
        [ScriptedSource(wire)],
        [door] if door else [],
        WorkerOptions(**chosen),
        sink,
        protocols=["natq"],
    )


async def quick() -> None: ...


# Life -------------------------------------------------------------------------------------


async def test_a_worker_lives_once_and_says_so() -> None:
    told, wire = Recorder(), ScriptedWire("quick")
    worker = a_worker(wire, quick, sink=told)
    assert worker.state is WorkerState.CREATED

    await worker.start()
    await worker.start()
    assert worker.state == WorkerState.RUNNING
    await wire.over(await wire.enqueue({}))
    await worker.stop()
    await worker.stop()

    assert worker.state == WorkerState.STOPPED
    kinds = told.kinds()
    assert (kinds[0], kinds[-1]) == (EventKind.WORKER_STARTED, EventKind.WORKER_STOPPED)
    assert told.the(EventKind.WORKER_STARTED).worker == worker.id
    assert told.flushed == 1
    with pytest.raises(ConfigError, match="stopped"):
        worker.serve([ScriptedSource(wire)])


async def test_nothing_of_a_stopped_worker_goes_on() -> None:
    before, threads = asyncio.all_tasks(), set(threading.enumerate())
    wire = ScriptedWire()

    def in_thread() -> None: ...

    worker = a_worker(wire, quick, in_thread, task(handlers.square, cpu=True), health="0")
    await worker.start()
    ids = [
        await wire.enqueue({"n": 1} if name == "square" else {}, task=name)
        for name in ("quick", "in_thread", "square")
    ]
    await wire.over(*ids)
    await worker.stop()

    assert asyncio.all_tasks() == before
    await eventually(lambda: set(threading.enumerate()) <= threads)


async def test_those_who_ask_to_stop_at_once_wait_for_the_same_end() -> None:
    cue, wire = Cue(), ScriptedWire("held")

    async def held() -> None:
        await cue.here_async()

    worker = a_worker(wire, held)
    await worker.start()
    work_id = await wire.enqueue({})
    await cue.is_reached()
    stops = [asyncio.create_task(worker.stop()) for _ in range(3)]
    await asyncio.sleep(0)
    cue.go()
    await asyncio.gather(*stops)

    assert wire.outcomes(work_id) == ["Done"]


async def test_a_run_that_is_cancelled_gives_back_what_it_had() -> None:
    cue, wire = Cue(), ScriptedWire("held")

    async def held() -> None:
        await cue.here_async()

    worker = a_worker(wire, held)
    running = asyncio.create_task(worker.run())
    work_id = await wire.enqueue({})
    await cue.is_reached()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert worker.state is WorkerState.STOPPED
    assert wire.works[work_id].settled_as == [Interrupted()]


async def test_a_source_that_cannot_start_ends_the_run_and_leaves_nothing() -> None:
    class Broken(Door):
        async def start(self, receive: Any) -> None:
            raise OSError("no such subject")

    worker = a_worker(ScriptedWire("quick"), quick, door=Broken())

    with pytest.raises(OSError, match="no such subject"):
        await worker.run()
    assert worker.state is WorkerState.STOPPED


async def test_a_sink_that_raises_breaks_no_work() -> None:
    class Broken(Recorder):
        def emit(self, event: Any) -> None:
            raise RuntimeError("a bug")

        async def flush(self) -> None:
            raise RuntimeError("a bug")

    wire = ScriptedWire("quick")
    worker = a_worker(wire, quick, sink=Broken())
    await worker.start()
    await wire.over(await wire.enqueue({}))
    await worker.stop()

    assert worker.state is WorkerState.STOPPED


# Drain ------------------------------------------------------------------------------------


async def in_loop(ctx: Context, cue: Any = None) -> None:
    await asyncio.sleep(3600)


def in_thread(ctx: Context) -> str:
    while not ctx.lost:
        time.sleep(0.005)
    return "saw it and finished"


def deaf_thread() -> None:
    time.sleep(3)


async def test_what_ends_within_the_grace_is_finished_and_nothing_new_is_taken() -> None:
    cue, wire = Cue(), ScriptedWire()

    async def held() -> str:
        await cue.here_async()
        return "finished"

    def held_too() -> str:
        cue.here()
        return "finished"

    worker = a_worker(wire, held, held_too)
    await worker.start()
    inside = [await wire.enqueue({}, task=name) for name in ("held", "held_too")]
    await cue.is_reached(2)
    stopping = asyncio.create_task(worker.stop(timedelta(seconds=30)))
    await eventually(lambda: worker._jobs is not None and worker._jobs._pulls.stopping)
    late = await wire.enqueue({}, task="held")
    cue.go()
    await stopping

    assert [wire.outcomes(i) for i in inside] == [["Done"], ["Done"]]
    assert wire.works[late].delivery == 0


async def test_after_the_grace_handlers_of_every_kind_end_and_cost_no_attempt(
    tmp_path: Path,
) -> None:
    """Async: cancelled. Thread and process: told first, and what they finish counts; a thread
    that does not listen is given back all the same, a process like that is killed."""
    cue, wire, door = Cue(), ScriptedWire(), Door()

    async def narrow() -> None:
        await cue.here_async()

    async def asked() -> None:
        await cue.here_async()

    served = [
        in_loop,
        in_thread,
        deaf_thread,
        task(narrow, concurrency=1),
        task(asked, reply=True),
        task(handlers.heed, cpu=True),
        task(handlers.spin_forever, cpu=True),
    ]
    worker = a_worker(wire, *served, door=door, concurrency=16, processes=2)
    await worker.start()
    bodies = {"heed": {"gate": str(tmp_path / "gate")}}
    for name in ("in_loop", "in_thread", "deaf_thread", "narrow", "heed", "spin_forever"):
        await wire.enqueue(bodies.get(name, {}), task=name, work_id=name)
    await wire.enqueue({}, task="narrow", work_id="waits in hand")
    question = door.ask("asked")
    await eventually(lambda: worker.running == 8 and (tmp_path / "gate").exists())

    began = time.monotonic()
    await worker.stop(timedelta(seconds=0.1))

    assert time.monotonic() - began < 20
    ends = {name: wire.outcomes(name) for name in wire.works}
    assert ends == {
        "in_loop": ["Interrupted"],
        "in_thread": ["Done"],
        "deaf_thread": ["Interrupted"],
        "narrow": ["Interrupted"],
        "heed": ["Done"],
        "spin_forever": ["Interrupted"],
        "waits in hand": ["Interrupted"],
    }
    assert question.answers == [Interrupted()]
    assert {work.attempt for work in wire.works.values()} == {1}
    given_back = [w for w in wire.works.values() if w.state is None]
    assert len(given_back) == 5
    assert all(not work.lapses for work in given_back)  # free at once, not after a lease


async def test_a_handler_that_is_interrupted_may_still_snooze_with_a_checkpoint() -> None:
    wire = ScriptedWire("tidy")

    async def tidy() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise Snooze(0, checkpoint={"page": 3}) from None

    worker = a_worker(wire, tidy)
    await worker.start()
    work_id = await wire.enqueue({})
    await eventually(lambda: worker.running)
    await eventually(lambda: wire.works[work_id].delivery)
    await asyncio.sleep(0.05)
    await worker.stop(timedelta(0))

    kept = wire.works[work_id].checkpoint
    assert kept is not None
    assert kept.value == {"page": 3}


async def test_force_cuts_the_grace_short() -> None:
    cue, wire = Cue(), ScriptedWire("held")

    async def held() -> None:
        await cue.here_async()

    worker = a_worker(wire, held, grace=timedelta(hours=1))
    running = asyncio.create_task(worker.run())
    work_id = await wire.enqueue({})
    await cue.is_reached()
    worker.ask_to_stop()
    await eventually(lambda: worker._jobs is not None and worker._jobs._quiet._waiter is not None)

    worker.force()

    assert await running is ExitCode.FORCED
    assert wire.outcomes(work_id) == ["Interrupted"]
    assert wire.works[work_id].attempt == 1


async def test_giving_back_that_never_ends_does_not_keep_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.runtime.jobloop._GIVE_BACK_S", 0.1)
    cue, wire = Cue(), ScriptedWire("held")
    never = asyncio.Event()

    async def held() -> None:
        await cue.here_async()

    worker = a_worker(wire, held)
    await worker.start()
    await wire.enqueue({})
    await cue.is_reached()

    async def stuck(call: str) -> None:
        if call == "settle":
            await never.wait()

    wire.called = stuck  # type: ignore[method-assign]
    await worker.stop(timedelta(0))

    assert worker.state is WorkerState.STOPPED
    assert worker.running == 0


# Recycling --------------------------------------------------------------------------------


async def test_after_max_jobs_a_worker_drains_and_asks_to_be_replaced() -> None:
    wire, told = ScriptedWire("quick"), Recorder()
    worker = a_worker(wire, quick, max_jobs=5, concurrency=1, sink=told)
    ids = [await wire.enqueue({}) for _ in range(20)]

    assert await worker.run() is ExitCode.RECYCLED

    done = [i for i in ids if wire.works[i].state is SettledKind.SUCCEEDED]
    assert 5 <= len(done) <= 7
    assert all(wire.works[i].attempt == 1 for i in ids)
    assert "max_jobs" in told.the(EventKind.WORKER_STOPPED).note


async def test_answers_count_as_jobs_too() -> None:
    wire, door = ScriptedWire("quick"), Door()

    async def asked() -> None: ...

    worker = a_worker(wire, quick, asked, door=door, max_jobs=3)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker.state == WorkerState.RUNNING)
    for _ in range(3):
        door.ask("asked")

    assert await running is ExitCode.RECYCLED


async def test_a_worker_that_grew_too_big_asks_to_be_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.runtime.worker._PATROL_S", 0.01)
    told = Recorder()
    worker = a_worker(ScriptedWire("quick"), quick, max_rss_mb=1, sink=told)

    assert await worker.run() is ExitCode.RECYCLED
    assert "max_rss_mb" in told.the(EventKind.WORKER_STOPPED).note


def test_memory_is_measured_and_compared() -> None:
    from penstock.runtime.recycle import Recycle, resident_bytes

    assert 5 << 20 < resident_bytes() < 4 << 30
    assert Recycle(max_rss_mb=100_000).memory() == ""
    assert Recycle().job_ended() == ""


# Health -----------------------------------------------------------------------------------


async def test_health_and_readiness_follow_the_life_of_the_worker() -> None:
    cue, wire = Cue(), ScriptedWire("held")

    async def held() -> None:
        await cue.here_async()

    worker = a_worker(wire, held)
    assert worker.ready().reasons == ("the worker is created",)
    await worker.start()
    assert worker.ready().ok
    await wire.enqueue({})
    await cue.is_reached()
    stopping = asyncio.create_task(worker.stop(timedelta(seconds=30)))
    await asyncio.sleep(0)
    assert worker.ready().reasons == ("the worker drains",)
    assert worker.health().ok  # or a probe would kill what still finishes
    cue.go()
    await stopping
    assert not worker.health().ok


async def test_a_lost_source_makes_it_unready_but_not_unhealthy() -> None:
    from penstock.core.delivery import SourceLost

    wire = ScriptedWire("quick")
    wire.script("take", *[SourceLost("cut")] * 3)
    worker = a_worker(wire, quick)
    await worker.start()
    await eventually(lambda: not worker.ready().ok)

    assert worker.ready().reasons == ("source scripted is lost",)
    assert worker.health().ok
    await eventually(lambda: worker.ready().ok)
    await worker.stop()


@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"threads": 0}, {"max_jobs": 0}, {"grace": timedelta(-1)}]
)
def test_options_that_make_no_sense_are_told_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        WorkerOptions(**options)
