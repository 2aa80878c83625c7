"""Crons: registered, fired once per instant by any number of instances, and refused when wrong."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.protocols.ojs.crons import CronRow, parse_cron
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.fields import object_of
from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.ojs.refusal import Refusal, Refused
from penstock.protocols.ojs.views import JobQuery

from .conftest import until
from .stories import ack, fetch


class Clock:
    """A clock that the test moves; crons look at it whenever their table changes."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 11, 59, 30, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def pair(ojs_nats: EmbeddedNats, clock: Clock) -> Any:
    """Two engines whose crons fire only when told to."""
    engines, links = [], []
    for name in ("a", "b"):
        link = await Link.open(NatsOptions.from_url(ojs_nats.url))
        links.append(link)
        engines.append(
            await Engine.open(
                link,
                OjsOptions(events=False),
                services=False,
                name=name,
                clock=clock,
                dice=Random(name),
            )
        )
    yield engines
    for engine, link in zip(engines, links, strict=True):
        await engine.close()
        await link.close(drain=False)


def a_cron(engine: Engine, **members: Any) -> CronRow:
    body = {"name": "tick", "expression": "* * * * *", "type": "report", **members}
    return parse_cron(object_of(msgspec.json.encode(body)), engine.shared)


async def turn(*engines: Engine) -> None:
    for engine in engines:
        await engine.crons.table.barrier()
    await asyncio.gather(*(engine.crons._turn() for engine in engines))


async def test_an_instant_fires_once_however_many_instances_look(
    pair: list[Engine], clock: Clock
) -> None:
    a, b = pair
    row, new = await a.crons.register(a_cron(a))
    assert new and row.next_at == datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    await turn(a, b)
    assert await fetch(a) == []

    clock.now += timedelta(seconds=31)
    for _ in range(3):
        await turn(a, b)

    got = await fetch(b, count=9)
    assert len(got) == 1
    meta = msgspec.json.decode(got[0].job.meta)
    assert meta == {"cron_name": "tick", "cron_triggered_at": "2026-03-01T12:00:00.000Z"}
    kept = await b.crons.get("tick")
    assert isinstance(kept, CronRow) and kept.run_count == 1


async def test_overlap_skip_waits_for_the_previous_to_end(pair: list[Engine], clock: Clock) -> None:
    a, b = pair
    await a.crons.register(a_cron(a))
    for _ in range(3):
        clock.now += timedelta(minutes=1)
        await turn(a, b)
    got = await fetch(a, count=9)
    assert len(got) == 1
    await ack(a, got[0].id)
    clock.now += timedelta(minutes=1)
    await turn(b, a)
    assert len(await fetch(b, count=9)) == 1


@pytest.mark.parametrize(
    ("policy", "states"),
    [("allow", ["available", "available"]), ("cancel_previous", ["available", "cancelled"])],
)
async def test_other_overlap_policies(
    pair: list[Engine], clock: Clock, policy: str, states: list[str]
) -> None:
    a, _ = pair
    await a.crons.register(a_cron(a, overlap_policy=policy))
    for _ in range(2):
        clock.now += timedelta(minutes=1)
        await turn(a)
    page = await a.jobs(JobQuery())
    assert sorted(r.state for r in page.jobs) == states


async def test_overlap_enqueue_never_runs_two_at_once(pair: list[Engine], clock: Clock) -> None:
    a, _ = pair
    await a.crons.register(a_cron(a, overlap_policy="enqueue"))
    for _ in range(3):
        clock.now += timedelta(minutes=1)
        await turn(a)
    first = await fetch(a, count=9)
    assert len(first) == 1 and await fetch(a, count=9) == []
    await ack(a, first[0].id)
    assert len(await fetch(a, count=9)) == 1


@pytest.mark.parametrize(("policy", "fired"), [("skip", 1), ("once", 1), ("all", 31)])
async def test_after_an_absence_the_misfire_policy_decides(
    pair: list[Engine], clock: Clock, policy: str, fired: int
) -> None:
    a, b = pair
    await a.crons.register(a_cron(a, misfire_policy=policy, overlap_policy="allow"))
    clock.now += timedelta(minutes=31)
    await turn(a, b)
    assert len(await fetch(a, count=99)) == fired


async def test_a_disabled_cron_fires_nothing_and_catches_nothing_up(
    pair: list[Engine], clock: Clock
) -> None:
    a, _ = pair
    await a.crons.register(a_cron(a, misfire_policy="all"))
    off = await a.crons.enable("tick", enabled=False)
    assert isinstance(off, CronRow) and off.next_at is None
    clock.now += timedelta(minutes=9)
    await turn(a)
    await a.crons.enable("tick", enabled=True)
    await turn(a)
    assert await fetch(a, count=9) == []


async def test_registering_again_updates_and_removing_keeps_jobs(
    pair: list[Engine], clock: Clock
) -> None:
    a, b = pair
    await a.crons.register(a_cron(a))
    clock.now += timedelta(minutes=1)
    await turn(a)
    row, new = await b.crons.register(a_cron(b, expression="@daily", description="x"))
    assert not new and (row.run_count, row.expression) == (1, "@daily")
    assert [r.name for r in await a.crons.all()] == ["tick"]
    assert isinstance(await a.crons.remove("tick"), CronRow)
    assert isinstance(await a.crons.remove("tick"), Refusal)
    assert len(await fetch(a, count=9)) == 1


@pytest.mark.parametrize(
    "members",
    [{"expression": e} for e in ("", "* * * *", "99 25 32 13 8", "*/0 * * * *", "0 0 0 0 0 0 0")]
    + [{"timezone": z} for z in ("+05:00", "EST", "PST", "Mars/Olympus", "")]
    + [{"name": "No!"}, {"type": "Bad Type"}, {"overlap_policy": "fight"}, {"args": {}},
       {"options": {"queue": "_"}}, {"enabled": 1}],
    ids=str,
)  # fmt: skip
async def test_what_makes_no_sense_is_refused(pair: list[Engine], members: dict[str, Any]) -> None:
    if members == {"timezone": ""}:
        assert a_cron(pair[0], **members).timezone == "UTC"
        return
    with pytest.raises(Refused) as told:
        a_cron(pair[0], **members)
    assert told.value.refusal.status == 400


async def test_a_template_may_stand_by_itself(pair: list[Engine]) -> None:
    template = {"type": "report.daily", "args": [1], "options": {"queue": "reports"}}
    row = a_cron(pair[0], type=None, job_template=template)
    assert msgspec.json.decode(row.template) == template


async def test_a_running_service_fires_every_second(open_engine: Any) -> None:
    a, b = await open_engine(), await open_engine()
    await a.crons.register(a_cron(a, expression="@every 1s", overlap_policy="allow"))
    await until(lambda: b.shared.books.index.counts("default")["available"] >= 2)
    rows = await b.crons.all()
    jobs = await b.jobs(JobQuery(limit=200))
    nominal = [msgspec.json.decode(r.job.meta)["cron_triggered_at"] for r in jobs.jobs]
    assert len(nominal) == len(set(nominal)) and rows[0].name == "tick"
