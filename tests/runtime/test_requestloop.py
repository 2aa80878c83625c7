"""The request loop: every question is answered, once, whatever happens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from penstock import Context, Reject
from penstock.core.delivery import RequestSink
from penstock.core.events import EventKind
from penstock.core.invocation import Invocation
from penstock.core.outcome import Done, Failed, Interrupted, Outcome, Snoozed, Word
from penstock.core.task import Task
from penstock.runtime.requestloop import RequestLoop
from tests.runtime.stage import Cue, Recorder, a_shop, eventually, task


class Asked:
    def __init__(self, name: str, body: Any) -> None:
        self.invocation = Invocation(protocol="natq", task=name, work_id=f"r-{name}", body=body)
        self.answers: list[Outcome] = []

    def answer(self, outcome: Outcome) -> None:
        self.answers.append(outcome)


class Door:
    """A source of requests that keeps what it was told."""

    name = "door"

    def __init__(self) -> None:
        self.receive: RequestSink | None = None
        self.drained = self.stopped = 0

    async def start(self, receive: RequestSink) -> None:
        self.receive = receive

    async def drain(self) -> None:
        self.drained += 1

    async def stop(self) -> None:
        self.stopped += 1

    def ask(self, name: str = "act", body: Any = None) -> Asked:
        asked = Asked(name, {} if body is None else body)
        assert self.receive is not None
        self.receive(asked)
        return asked


@asynccontextmanager
async def answering(
    *declared: Callable[..., Any] | Task, slots: int = 4, **more: Any
) -> AsyncIterator[tuple[Door, RequestLoop]]:
    door, shop = Door(), a_shop(*declared, **more)
    loop = RequestLoop([door], shop, slots=slots)
    await loop.start()
    try:
        yield door, loop
    finally:
        loop.force()
        await loop.stop(timedelta(0))
        shop.offload.stop()


async def answer_to(asked: Asked) -> Outcome:
    await eventually(lambda: asked.answers)
    (answer,) = asked.answers
    return answer


async def test_a_value_is_the_answer() -> None:
    async def act(a: int, b: int) -> int:
        return a + b

    async with answering(act) as (door, loop):
        assert await answer_to(door.ask(body={"a": 1, "b": 2})) == Done(3)
        await eventually(lambda: not loop.running)


async def test_a_sync_handler_answers_from_its_thread() -> None:
    def act() -> str:
        return threading.current_thread().name

    async with answering(act) as (door, _):
        answer = await answer_to(door.ask())

    assert isinstance(answer, Done)
    assert answer.value.startswith("penstock-")


async def test_a_rejection_and_an_exception_are_answers_too() -> None:
    async def act(bad: bool) -> None:
        raise Reject("never", status=422) if bad else OSError("broken")

    async with answering(act) as (door, _):
        rejected = await answer_to(door.ask(body={"bad": True}))
        failed = await answer_to(door.ask(body={"bad": False}))

    assert isinstance(rejected, Failed)
    assert isinstance(failed, Failed)
    assert (rejected.verdict, rejected.failure.status) == (Word.NEVER, 422)
    assert failed.verdict is Word.BY_POLICY


async def test_over_the_limit_the_answer_is_busy_at_once() -> None:
    cue, told = Cue(), Recorder()

    async def act() -> None:
        await cue.here_async()

    async with answering(act, slots=2, sink=told) as (door, loop):
        held = [door.ask() for _ in range(2)]
        third = door.ask()

        (busy,) = third.answers
        assert isinstance(busy, Failed)
        assert (busy.failure.code, busy.failure.status) == ("busy", 503)
        assert loop.refused == 1
        cue.go()
        for one in held:
            assert isinstance(await answer_to(one), Done)

    assert told.kinds().count(EventKind.FAILED) == 1


async def test_a_task_with_a_limit_of_its_own_is_busy_while_others_answer() -> None:
    cue = Cue()

    async def narrow() -> None:
        await cue.here_async()

    async def wide() -> str:
        return "here"

    async with answering(task(narrow, concurrency=1), wide) as (door, _):
        door.ask("narrow")
        (busy,) = door.ask("narrow").answers
        assert isinstance(busy, Failed)
        assert busy.failure.code == "busy"
        assert await answer_to(door.ask("wide")) == Done("here")
        cue.go()


async def test_a_task_nobody_declared_is_answered_with_the_nearest_name() -> None:
    async def resize() -> None: ...

    async with answering(resize) as (door, _):
        answer = await answer_to(door.ask("rezise"))

    assert isinstance(answer, Failed)
    assert answer.failure.code == "task.unknown"


async def test_a_timeout_is_answered_and_the_thread_keeps_its_slot() -> None:
    gate = threading.Event()

    def act() -> None:
        gate.wait(30)

    async with answering(task(act, timeout=0.05), slots=1) as (door, loop):
        answer = await answer_to(door.ask())
        assert isinstance(answer, Failed)
        assert answer.failure.code == "timeout"
        assert loop.zombies == 1
        (busy,) = door.ask().answers
        assert isinstance(busy, Failed)
        gate.set()
        await eventually(lambda: not loop.zombies)
        assert isinstance(await answer_to(door.ask()), Done | Failed)


async def test_there_is_no_place_for_a_checkpoint_and_that_is_told() -> None:
    async def act(ctx: Context) -> None:
        await ctx.checkpoint({"page": 1})

    async with answering(act) as (door, _):
        answer = await answer_to(door.ask())

    assert isinstance(answer, Failed)
    assert "a request is not stored" in answer.failure.message


async def test_an_adapter_that_raises_while_answering_ends_nothing() -> None:
    async def act() -> str:
        return "fine"

    async with answering(act) as (door, loop):
        bad = door.ask()
        bad.answer = None  # type: ignore[assignment,method-assign]
        await eventually(lambda: not loop.running)
        assert await answer_to(door.ask()) == Done("fine")


async def test_a_drain_answers_what_was_accepted_and_refuses_what_comes_later() -> None:
    cue = Cue()

    async def act() -> str:
        await cue.here_async()
        return "in time"

    async with answering(act) as (door, loop):
        held = door.ask()
        await cue.is_reached()
        stopping = asyncio.create_task(loop.stop(timedelta(seconds=30)))
        await eventually(lambda: loop._stopping)
        late = door.ask()

        assert late.answers == [Interrupted()]
        cue.go()
        await stopping
        assert held.answers == [Done("in time")]
        assert (door.drained, door.stopped) == (1, 1)


@pytest.mark.parametrize("kind", ["loop", "thread"])
async def test_after_the_grace_the_rest_is_answered_as_interrupted(kind: str) -> None:
    gate = threading.Event()

    async def in_loop() -> None:
        await asyncio.sleep(3600)

    def in_thread() -> None:
        gate.wait(30)

    async with answering(task(in_loop if kind == "loop" else in_thread, name="act")) as (
        door,
        loop,
    ):
        held = door.ask()
        await loop.stop(timedelta(seconds=0.01))
        assert held.answers == [Interrupted()]
        gate.set()


async def test_a_snooze_is_passed_on_for_the_wire_to_refuse() -> None:
    from penstock import Snooze

    async def act() -> None:
        raise Snooze(5)

    async with answering(act) as (door, _):
        assert isinstance(await answer_to(door.ask()), Snoozed)


async def test_a_door_that_does_not_stop_cleanly_does_not_hold_up_the_drain() -> None:
    class Stuck(Door):
        async def drain(self) -> None:
            raise OSError("cut")

        async def stop(self) -> None:
            raise OSError("cut")

    async def act() -> None: ...

    shop = a_shop(act)
    loop = RequestLoop([Stuck()], shop)
    await loop.start()

    await loop.stop(timedelta(0))
    await loop.stop(timedelta(0))
