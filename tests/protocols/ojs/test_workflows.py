"""Workflows: in order, all at once, callbacks exactly once; and what a crash leaves of them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.fields import object_of
from penstock.protocols.ojs.flows import FlowView
from penstock.protocols.ojs.refusal import Refusal, Refused
from penstock.protocols.ojs.views import JobQuery

from .conftest import OpenEngine, until
from .stories import ack, fetch, nack, take

DIES = {"options": {"retry": {"max_attempts": 1}}}


def job(name: str, **more: Any) -> dict[str, Any]:
    return {"type": name, "args": [], **more}


def parse(engine: Engine, **body: Any) -> Any:
    return engine.workflows.parse(object_of(msgspec.json.encode(body)))


async def create(engine: Engine, **body: Any) -> FlowView:
    view = await engine.workflows.create(parse(engine, **body))
    assert isinstance(view, FlowView), view
    return view


async def look(engine: Engine, view: FlowView) -> FlowView:
    found = await engine.workflows.get(view.row.id)
    assert isinstance(found, FlowView), found
    return found


async def run(engine: Engine, result: Any = None) -> str:
    """Take the next job, succeed, and say what it was and what it was given."""
    record = await take(engine)
    await ack(engine, record.id, result)
    given = bytes(record.job.parent_results).decode()  # type: ignore[arg-type]
    return f"{record.job.type}{given}"


async def test_a_chain_runs_in_order_and_passes_results_on(engine: Engine) -> None:
    view = await create(engine, type="chain", steps=[job("a"), job("b"), job("c")], name="abc")
    assert (view.row.state, view.total, view.done) == ("running", 3, 0)
    assert [s.state for s in view.steps] == ["available", "waiting", "waiting"]
    assert await run(engine, {"n": 1}) == "a[]"
    assert await run(engine, 2) == 'b[{"n":1}]'
    assert (await look(engine, view)).done == 2
    assert await run(engine) == 'c[{"n":1},2]'
    ended = await look(engine, view)
    assert (ended.row.state, ended.done) == ("completed", 3)


async def test_a_step_that_fails_for_good_fails_the_chain(engine: Engine) -> None:
    view = await create(engine, type="chain", steps=[job("a"), job("b", **DIES), job("c")])
    await run(engine)
    await nack(engine, (await take(engine)).id)
    ended = await look(engine, view)
    assert (ended.row.state, ended.done, ended.failed) == ("failed", 1, 1)
    assert [s.state for s in ended.steps] == ["completed", "discarded", "cancelled"]
    assert await fetch(engine) == []


async def test_a_retry_on_the_way_is_no_failure(engine: Engine) -> None:
    policy = {"options": {"retry": {"initial_interval": "PT0.05S", "jitter": False}}}
    view = await create(engine, type="chain", steps=[job("a", **policy), job("b")])
    await nack(engine, (await take(engine)).id)
    await run(engine)
    await run(engine)
    assert (await look(engine, view)).row.state == "completed"


async def test_a_group_is_over_when_all_members_are(engine: Engine) -> None:
    view = await create(engine, type="group", jobs=[job("a"), job("b", **DIES), job("c")])
    got = await fetch(engine, count=9)
    assert [r.job.type for r in got] == ["a", "b", "c"]
    await ack(engine, got[2].id)
    await nack(engine, got[1].id)
    assert (await look(engine, view)).row.state == "running"
    await ack(engine, got[0].id)
    ended = await look(engine, view)
    assert (ended.row.state, ended.done, ended.total) == ("failed", 2, 3)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_batch_calls_back_once_and_only_what_applies(engine: Engine, fails: bool) -> None:
    callbacks = {f"on_{w}": job(w) for w in ("complete", "success", "failure")}
    view = await create(
        engine, type="batch", jobs=[job("a"), job("b", **DIES)], callbacks=callbacks
    )
    a, b = await fetch(engine, count=2)
    await ack(engine, a.id, 7)
    await (nack(engine, b.id) if fails else ack(engine, b.id, 8))
    called = sorted([await run(engine), await run(engine)])
    results = "[7,null]" if fails else "[7,8]"
    assert called == [f"complete{results}", f"{'failure' if fails else 'success'}{results}"]
    ended = await look(engine, view)
    assert ended.row.state == "completed"
    assert await fetch(engine) == []


async def test_nested_parts_start_when_their_turn_comes(engine: Engine) -> None:
    inner = {
        "type": "group",
        "jobs": [job("b1"), {"type": "chain", "steps": [job("c1"), job("c2")]}],
    }
    view = await create(engine, type="chain", steps=[job("a"), inner, job("z")])
    assert await run(engine, "A") == "a[]"
    got = {r.job.type: r for r in await fetch(engine, count=9)}
    assert sorted(got) == ["b1", "c1"]
    await ack(engine, got["c1"].id, "C1")
    assert await run(engine, "C2") == 'c2["A","C1"]'
    await ack(engine, got["b1"].id, "B1")
    assert await run(engine) == 'z["A",["B1","C2"]]'
    assert (await look(engine, view)).row.state == "completed"


async def test_a_graph_runs_a_step_when_all_it_waits_for_succeeded(engine: Engine) -> None:
    steps = [
        {"id": "join", **job("join"), "depends_on": ["l", "r"]},
        {"id": "l", **job("left")},
        {"id": "r", **job("right")},
        {"id": "cb", **job("failed"), "depends_on": ["join"],
         "options": {"callback_type": "on_failure"}},
    ]  # fmt: skip
    view = await create(engine, steps=steps)
    got = {r.job.type: r for r in await fetch(engine, count=9)}
    assert sorted(got) == ["left", "right"]
    await ack(engine, got["right"].id, "R")
    assert await fetch(engine) == []
    await ack(engine, got["left"].id, "L")
    assert await run(engine) == 'join["L","R"]'
    ended = await look(engine, view)
    assert ended.row.state == "completed"
    assert [s.id for s in ended.steps] == ["join", "l", "r", "cb"]


async def test_cancelling_stops_what_waits_and_lets_finish_what_runs(engine: Engine) -> None:
    view = await create(engine, type="group", jobs=[job("a"), job("b"), job("c")])
    running = await take(engine)
    ended = await engine.workflows.cancel(view.row.id)
    assert isinstance(ended, FlowView) and ended.row.state == "cancelled"
    assert await fetch(engine) == []
    await ack(engine, running.id)
    assert (await look(engine, view)).row.state == "cancelled"
    assert isinstance(await engine.workflows.cancel(view.row.id), Refusal)
    page = await engine.jobs(JobQuery())
    assert sorted(r.state for r in page.jobs) == ["cancelled", "cancelled", "completed"]


async def test_members_ending_at_once_on_two_instances_call_back_once(
    open_engine: OpenEngine,
) -> None:
    a, b = await open_engine(), await open_engine()
    for _ in range(5):
        await create(a, type="batch", jobs=[job("m"), job("m")],
                     callbacks={"on_success": job("called")})  # fmt: skip
        x, y = await fetch(a, count=2)
        await asyncio.gather(ack(a, x.id), ack(b, y.id))
        assert (await take(b)).job.type == "called"
    assert await fetch(a) == []
    page = await a.jobs(JobQuery(job_type="called"))
    assert page.total == 5


async def test_a_workflow_whose_maker_died_after_the_first_write_is_carried_on(
    open_engine: OpenEngine,
) -> None:
    a = await open_engine(services=False)
    row = parse(a, type="chain", steps=[job("a"), job("b")])
    await a.workflows.table.create(row.id, row)
    b = await open_engine(patience=timedelta(milliseconds=100))
    assert await run(b) == "a[]"
    assert (await take(b)).job.type == "b"


async def test_a_step_that_ended_while_nobody_looked_is_followed_by_the_next(
    open_engine: OpenEngine,
) -> None:
    a = await open_engine(services=False)
    view = await create(a, type="chain", steps=[job("a"), job("b")])
    first = await take(a)
    a.workflows._stopped = True  # dies between the job's write and the workflow's
    from penstock.protocols.ojs import rules
    from penstock.protocols.ojs.requests import AckRequest

    done = AckRequest(job_id=first.id)
    await a.shared.books.store.change(
        first.id,
        lambda r: rules.acknowledge(r, done, a.shared.clock(), a.shared.dice, a.options),
    )
    b = await open_engine(patience=timedelta(milliseconds=100))
    assert (await take(b)).job.type == "b"
    assert (await look(b, view)).done == 1


async def test_a_member_that_may_not_be_enqueued_fails_its_workflow(engine: Engine) -> None:
    unique = {"options": {"unique": {"keys": ["type"]}}}
    view = await create(engine, type="group", jobs=[job("same", **unique), job("same", **unique)])
    got = await fetch(engine, count=9)
    assert len(got) == 1
    await ack(engine, got[0].id)
    await until(lambda: not engine.workflows.is_running(view.row.id))
    assert (await look(engine, view)).row.state == "failed"


async def test_many_members_finish_without_looking_at_all_for_each(engine: Engine) -> None:
    view = await create(engine, type="group", jobs=[job("m") for _ in range(300)])
    done = 0
    while done < 300:
        got = await fetch(engine, count=100)
        assert got
        await asyncio.gather(*(ack(engine, r.id) for r in got))
        done += len(got)
    ended = await look(engine, view)
    assert (ended.row.state, ended.done) == ("completed", 300)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"type": "chain", "steps": []}, "steps"),
        ({"type": "group", "jobs": [{"type": "Bad!"}]}, "jobs[0]"),
        ({"type": "batch", "jobs": [{"type": "a"}]}, "callbacks"),
        ({"type": "circle", "steps": []}, "type"),
        ({"steps": [{"id": "a", "type": "a", "depends_on": ["b"]}]}, "depends_on"),
        ({"steps": [{"id": "a", "type": "a", "depends_on": ["b"]},
                    {"id": "b", "type": "b", "depends_on": ["a"]}]}, "circle"),
        ({"steps": [{"id": "a", "type": "a"}, {"id": "a", "type": "b"}]}, "twice"),
        ({"type": "group", "jobs": [7]}, "jobs[0]"),
        ({}, "steps"),
    ],
    ids=str,
)  # fmt: skip
async def test_what_makes_no_sense_is_refused_and_writes_nothing(
    engine: Engine, body: dict[str, Any], named: str
) -> None:
    with pytest.raises(Refused) as told:
        parse(engine, **body)
    assert named in told.value.refusal.message
