"""A program to be killed: it enqueues a fixed load and works it off, again in each of its lives.

Everything has an id that is the same in every life, so that what an earlier one stored is met
again as a duplicate. Run with the address of a server; ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import timedelta
from typing import Any

import msgspec

from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.core.delivery import Settled
from penstock.core.outcome import Done, Failed, Failure
from penstock.protocols.ojs.crons import parse_cron
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.fields import object_of
from penstock.protocols.ojs.job import Job
from penstock.protocols.ojs.names import fixed_id
from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.ojs.worker import QueueSource
from tests.protocols.ojs.stories import asked

SINCE = 1_750_000_000_000
TYPES = ("plain", "flaky", "unique", "batch", "member", "called", "tick")
OPTIONS = OjsOptions(
    patience=timedelta(milliseconds=300), first_term=timedelta(milliseconds=700), max_deaths=50
)


def job_ids(kind: str, count: int) -> list[str]:
    return [fixed_id(SINCE, kind, str(n)) for n in range(count)]


PLAIN, FLAKY = job_ids("plain", 6), job_ids("flaky", 2)
UNIQUE, BATCH = job_ids("unique", 2), job_ids("batch", 5)
FLOW = fixed_id(SINCE, "flow")
EXPECTED = [*PLAIN, *FLAKY, *UNIQUE, *BATCH]


async def load(engine: Engine) -> None:
    retry = {"initial_interval": "PT0.02S", "max_attempts": 60}
    for n, job_id in enumerate(PLAIN):
        options: dict[str, Any] = {"scheduled_at": "+PT0.1S"} if n % 2 else {}
        await engine.push(asked(engine, "plain", id=job_id, retry=retry, **options))
    for job_id in FLAKY:
        await engine.push(asked(engine, "flaky", id=job_id, retry=retry))
    for n, job_id in enumerate(UNIQUE):
        unique = {"keys": ["type", "args"], "states": ["available", "active", "completed"]}
        await engine.push(asked(engine, "unique", id=job_id, args=[n], unique=unique, retry=retry))
    await engine.push_many([asked(engine, "batch", id=i, retry=retry) for i in BATCH])
    flow = {
        "id": FLOW,
        "type": "chain",
        "options": {"retry": retry},
        "steps": [
            {"type": "member"},
            {
                "type": "batch",
                "jobs": [{"type": "member"}, {"type": "member"}],
                "callbacks": {"on_complete": {"type": "called"}, "on_failure": {"type": "never"}},
            },
        ],
    }

    await engine.workflows.create(engine.workflows.parse(object_of(msgspec.json.encode(flow))))
    cron = {"name": "tick", "cron": "@every 1s", "type": "tick", "overlap_policy": "allow"}
    if engine.crons.table.get("tick") is None:
        await engine.crons.register(parse_cron(object_of(msgspec.json.encode(cron)), engine.shared))


async def work(engine: Engine, stop: asyncio.Event) -> None:
    source = QueueSource(engine, "default", {kind: kind for kind in TYPES}, "doomed")
    while not stop.is_set():
        for job in await source.take(4, timedelta(seconds=0.3)):
            await settle(job)


async def settle(job: Job) -> None:
    if job.invocation.task == "flaky" and job.invocation.attempt == 1:
        await job.settle(Failed(Failure("handler_error", "ValueError", "once")))
        return
    done = await job.settle(Done({"attempt": job.invocation.attempt}))
    if isinstance(done, Settled):
        print("settled", job.invocation.work_id, flush=True)


async def main(url: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    link = await Link.open(NatsOptions.from_url(url))
    async with await Engine.open(link, OPTIONS) as engine:
        working = asyncio.ensure_future(work(engine, stop))
        await load(engine)
        await working
    await link.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
