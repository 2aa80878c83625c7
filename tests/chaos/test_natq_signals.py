"""SIGTERM and SIGKILL with handlers of every kind in flight, through the real command line.

One async handler, one in a thread, one in a process of its own, one that a caller waits for:
all hold until the test lets them go.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
from nats.aio.msg import Msg

from tests.chaos.harness import Program, eventually
from tests.chaos.invariants import Ledger, judge, runs_at_most
from tests.chaos.natq_stage import LAWS, Load, NatqStage

STORED = ("held", "held_thread", "held_process")
KEYS = [f"{task}.r0" for task in STORED]


class InFlight:
    """A worker in the middle of everything, and the caller who waits for its answer."""

    def __init__(self, stage: NatqStage, worker: Program, ledger: Ledger, gate: Path) -> None:
        self.stage = stage
        self.worker = worker
        self.ledger = ledger
        self.gate = gate
        self.children: list[psutil.Process] = []
        self.asked: asyncio.Future[Msg]

    async def begin(self) -> None:
        body = {"gate": str(self.gate)}
        for task in STORED:
            await self.stage.put(Load(task, "r0", body), self.ledger)
        payload = Load("held_reply", "r0", body).payload
        self.asked = asyncio.ensure_future(
            self.stage.client.request("natq.req.held_reply", payload, timeout=60)
        )
        for key in KEYS:
            await self.stage.started(key, 1)
        await eventually(
            lambda: "held_reply" in self.stage.journal.read_text(), 30, what="the request"
        )
        self.children = psutil.Process(self.worker.pid).children(recursive=True)
        assert self.pid_of_handler in [child.pid for child in self.children]

    @property
    def pid_of_handler(self) -> int:
        """The process in which the ``cpu=True`` handler runs."""
        found = re.findall(r'"in process (\d+)"', self.stage.journal.read_text())
        return int(found[-1])

    async def all_gone(self) -> None:
        """Wait until no process of the worker is left."""
        await eventually(
            lambda: not any(lives(child) for child in self.children), 30, what="the end of all"
        )

    async def judged(self) -> Ledger:
        await self.stage.all_ended()
        await self.stage.collect(self.ledger)
        assert judge(self.ledger, LAWS) == []
        return self.ledger


@asynccontextmanager
async def in_flight(stage: NatqStage, **settings: str) -> AsyncIterator[InFlight]:
    async with stage.worker(settings) as worker:
        await stage.ready(worker)
        scene = InFlight(stage, worker, Ledger(), stage.folder / "gate")
        await scene.begin()
        yield scene


@asynccontextmanager
async def successor(stage: NatqStage) -> AsyncIterator[Program]:
    async with stage.worker() as worker:
        await stage.ready(worker)
        yield worker


async def test_sigterm_lets_handlers_of_every_kind_finish(natq: NatqStage) -> None:
    async with in_flight(natq) as scene:
        scene.worker.terminate()
        scene.gate.touch()

        assert await scene.worker.wait(60) == 0, scene.worker.output[-3000:]
        assert (await scene.asked).data == b'"answered"'
        await scene.all_gone()
    ledger = await scene.judged()

    assert ledger.tally("started") == dict.fromkeys(KEYS, 1)
    for key in KEYS:
        assert await natq.statuses(key) == [100, 200]


async def test_what_outlasts_the_grace_goes_back_without_costing_an_attempt(
    natq: NatqStage,
) -> None:
    async with in_flight(natq, PENSTOCK_WORKER__GRACE="200ms") as scene:
        scene.worker.terminate()

        assert await scene.worker.wait(60) == 0, scene.worker.output[-3000:]
        answer = await scene.asked
        assert answer.headers is not None
        assert answer.headers["status"] == "503"
        await scene.all_gone()
    for key in KEYS:
        assert await natq.status(key) == 100

    async with successor(natq):
        scene.gate.touch()
        ledger = await scene.judged()
    for key in KEYS:
        attempts = [fact.detail for fact in ledger.of("started") if fact.id == key]
        assert attempts == ["attempt 1", "attempt 1"], key


async def test_a_second_signal_forces_the_end_and_loses_nothing(natq: NatqStage) -> None:
    async with in_flight(natq, PENSTOCK_WORKER__GRACE="60s", PENSTOCK_LOG__LEVEL="info") as scene:
        scene.worker.terminate()
        await scene.worker.line("drains", within=30)
        scene.worker.terminate()

        assert await scene.worker.wait(40) == 130, scene.worker.output[-3000:]
        await scene.all_gone()

    async with successor(natq):
        scene.gate.touch()
        await scene.judged()


async def test_sigkill_takes_every_process_of_the_worker_along_and_loses_nothing(
    natq: NatqStage,
) -> None:
    async with in_flight(natq) as scene:
        scene.worker.kill()
        await scene.worker.wait()
        await scene.all_gone()

    async with successor(natq):
        scene.gate.touch()
        ledger = await scene.judged()
    assert judge(ledger, [runs_at_most(2)]) == []


async def test_a_handler_s_process_that_is_killed_costs_one_attempt_and_nothing_else(
    natq: NatqStage,
) -> None:
    async with in_flight(natq) as scene:
        psutil.Process(scene.pid_of_handler).kill()
        await natq.started("held_process.r0", 2)
        scene.gate.touch()
        ledger = await scene.judged()
        assert scene.worker.running

    attempts = [fact.detail for fact in ledger.of("started") if fact.id == "held_process.r0"]
    assert attempts == ["attempt 1", "attempt 2"]


async def test_a_killed_process_of_several_is_replaced_and_its_jobs_come_back(
    natq: NatqStage,
) -> None:
    ledger = Ledger()
    gate = natq.folder / "gate"
    async with natq.worker({"PENSTOCK_WORKER__PROCESSES": "2"}) as supervisor:
        await natq.ready(supervisor)
        for n in range(20):
            await natq.put(Load("held", f"r{n}", {"gate": str(gate)}), ledger)
        await natq.started("held.r19", 1)
        victim = next(iter(natq.pids_at_work()))
        psutil.Process(victim).kill()
        gate.touch()
        await natq.all_ended()
        supervisor.terminate()
        assert await supervisor.wait(60) == 0, supervisor.output[-3000:]

    await natq.collect(ledger)
    assert judge(ledger, LAWS) == []


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
