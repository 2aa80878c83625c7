"""Signals in a real process: drain, force, and nothing lost in between."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.runtime.programs import Program, gone, running

# A worker with handlers of every kind in flight, over the wire in memory. At the end it says
# how each piece of work was settled, and how many attempts it has cost.
BUSY = """
    import asyncio, os, sys, threading
    from datetime import timedelta
    from pathlib import Path
    from penstock.core.registry import Registry
    from penstock.runtime.options import WorkerOptions
    from penstock.runtime.worker import Worker
    from tests.runtime import handlers
    from tests.runtime.scripted import ScriptedSource, ScriptedWire

    folder, grace = Path(sys.argv[1]), float(sys.argv[2])
    go, inside = folder / "go", set()

    async def in_loop():
        inside.add("loop")
        while not go.exists():
            await asyncio.sleep(0.01)

    def in_thread():
        inside.add("thread")
        while not go.exists():
            threading.Event().wait(0.01)

    async def main():
        registry = Registry()
        registry.add(in_loop)
        registry.add(in_thread)
        registry.add(handlers.heed, cpu=True)
        wire = ScriptedWire()
        options = WorkerOptions(grace=timedelta(seconds=grace), processes=1)
        worker = Worker({t.name: t for t in registry}, [ScriptedSource(wire)], (), options)
        for name in ("in_loop", "in_thread"):
            await wire.enqueue({}, task=name, work_id=name)
        body = {"gate": str(folder / "gate"), "go": str(go)}
        await wire.enqueue(body, task="heed", work_id="heed")
        running = asyncio.create_task(worker.run())
        gate = folder / "gate"
        while len(inside) < 2 or not gate.exists() or not gate.read_text():
            await asyncio.sleep(0.005)
        print("busy", os.getpid(), flush=True)
        while not worker._stop_asked.is_set():
            await asyncio.sleep(0.005)
        print("draining", flush=True)
        code = await running
        for work in wire.works.values():
            ends = [type(outcome).__name__ for outcome in work.settled_as]
            print("end", work.work_id, *ends, work.attempt, flush=True)
        return code

    code = asyncio.run(main())
    print("code", int(code), flush=True)
    sys.exit(code)
"""


def ends_of(program: Program) -> dict[str, str]:
    lines = [line.split(maxsplit=2) for line in program.text.splitlines() if line[:4] == "end "]
    return {work_id: rest for _, work_id, rest in lines}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_every_kind_of_handler_finish(tmp_path: Path, number: signal.Signals) -> None:
    with running(BUSY, str(tmp_path), "60") as program:
        program.wait_for("busy")
        child = int((tmp_path / "gate").read_text())

        program.send(number)
        program.wait_for("draining")
        (tmp_path / "go").touch()
        code = program.ended()

    assert ends_of(program) == dict.fromkeys(("in_loop", "in_thread", "heed"), "Done 1")
    assert code == 0
    assert gone(child)


def test_after_the_grace_all_is_given_back_without_an_attempt(tmp_path: Path) -> None:
    with running(BUSY, str(tmp_path), "0.2") as program:
        program.wait_for("busy")

        program.send(signal.SIGTERM)
        code = program.ended()

    assert ends_of(program) == {
        "in_loop": "Interrupted 1",
        "in_thread": "Interrupted 1",
        "heed": "Done 1",
    }
    assert code == 0


def test_a_second_signal_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    with running(BUSY, str(tmp_path), "3600") as program:
        program.wait_for("busy")

        program.send(signal.SIGTERM)
        program.wait_for("draining")
        program.send(signal.SIGTERM)
        code = program.ended()

    ends = ends_of(program)
    assert (ends["in_loop"], ends["in_thread"]) == ("Interrupted 1", "Interrupted 1")
    assert code == 130


def test_a_killed_worker_takes_its_children_along(tmp_path: Path) -> None:
    with running(BUSY, str(tmp_path), "60") as program:
        program.wait_for("busy")
        child = int((tmp_path / "gate").read_text())

        program.send(signal.SIGKILL)

        assert gone(child)
