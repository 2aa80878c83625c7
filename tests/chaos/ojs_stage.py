"""Open Job Spec under the knife: a server, a producer, a mix of jobs, and its own laws.

What is judged is read from the records with the stock client. A record keeps its latest
transitions, so a whole short life can be told from what is left of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext

from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.core.ids import uuid7
from penstock.protocols.ojs.client import OjsClient
from tests.chaos.harness import Program, eventually
from tests.chaos.invariants import (
    Law,
    Ledger,
    Violation,
    every_run_was_asked_for,
    no_start_after_final,
    nothing_lost,
)
from tests.chaos.natq_stage import Load
from tests.chaos.scenario import Scenario
from tests.chaos.servers import NatsServer

__all__ = ["LAWS", "TERM_S", "OjsStage", "a_job", "a_mix", "killing"]

TERM_S = 1.5
ATTEMPTS = {"hopeless": 2, "deadly": 2}  # every other job may be run twenty times
DISCARDED = ("rejected", *ATTEMPTS)
OVER = ("completed", "discarded", "cancelled")


def a_job(task: str, **body: Any) -> Load:
    """A job under a fresh id."""
    return Load(task, uuid7(), body)


def a_mix(dice: Random) -> list[Load]:
    """Jobs of every kind, shuffled."""
    mix = [a_job("plain", n=n) for n in range(8)]
    mix += [a_job("threaded", n=n) for n in range(2)]
    for task in ("flaky", "rejected", "hopeless", "paged", "saving", "snoozed"):
        mix += [a_job(task) for _ in range(2)]
    dice.shuffle(mix)
    return mix


@dataclass(eq=False)
class OjsStage:
    """A server, a producer on it, and the programs that serve its jobs."""

    server: NatsServer
    folder: Path
    nats: Client
    js: JetStreamContext
    link: Link
    client: OjsClient
    over: set[str] = field(default_factory=set)

    @classmethod
    async def on(cls, server: NatsServer, folder: Path) -> OjsStage:
        client = await nats.connect(
            server.url, error_cb=_quiet, reconnect_time_wait=0.05, max_reconnect_attempts=-1
        )
        link = await Link.open(NatsOptions.from_url(server.url))
        producer = await OjsClient.open(link)
        return cls(server, folder, client, client.jetstream(timeout=20), link, producer)

    async def close(self) -> None:
        await self.client.close()
        await self.link.close(drain=False)
        await self.nats.close()

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    def worker(self, env: Mapping[str, str] | None = None, *, url: str = "") -> Program:
        """``penstock worker --ojs`` with the application that is killed; not started yet."""
        command = [sys.executable, "-m", "penstock", "worker", "tests.chaos.app:app", "--ojs"]
        settings = {
            "CHAOS_JOURNAL": str(self.journal),
            "PENSTOCK_NATS_URL": url or self.server.url,
            "PENSTOCK_OJS__FIRST_TERM": f"{TERM_S}s",
            "PENSTOCK_LOG__LEVEL": "warning",
            **(env or {}),
        }
        return Program(command, env=settings, cwd=_ROOT)

    async def ready(self, worker: Program) -> None:
        """Wait until ``worker`` says that it serves."""
        await worker.line("^serving ", within=60)

    # The load ---------------------------------------------------------------------------

    async def put(self, job: Load, ledger: Ledger) -> None:
        """Store one job; an ``enqueued`` fact once the store has answered."""
        retry = {"initial_interval": "PT0.02S", "max_attempts": ATTEMPTS.get(job.task, 20)}
        body = dict(job.body)
        await self.client.enqueue(job.task, body, id=job.run_id, retry=retry)
        ledger.note("enqueued", job.key)

    async def records(self) -> dict[str, Any]:
        """Every record there is, by job id, as the stock client reads it."""
        bucket = await self.js.key_value("ojs-jobs")
        watcher = await bucket.watchall(ignore_deletes=True)
        found: dict[str, Any] = {}
        async for entry in watcher:
            if entry is None:
                break
            if not entry.key.startswith("txn."):
                found[entry.key] = json.loads(entry.value or b"{}")
        await watcher.stop()
        return found

    async def ended(self, ledger: Ledger) -> bool:
        """Whether every acknowledged job is over."""
        bucket = await self.js.key_value("ojs-jobs")
        for id in sorted(ledger.ids("enqueued") - self.over):
            record = json.loads((await bucket.get(id.partition(".")[2])).value or b"{}")
            if record["job"]["state"] not in OVER:
                return False
            self.over.add(id)
        return True

    async def all_ended(self, ledger: Ledger, within: float = 60.0) -> None:
        async def over() -> bool:
            return await self.ended(ledger)

        await eventually(over, within, what="the end of all jobs", every=0.05)

    async def started(self, key: str, times: int, within: float = 60.0) -> None:
        """Wait until the handler of ``key`` has begun so often."""

        def begun() -> bool:
            ledger = Ledger()
            ledger.read_journal(self.journal)
            return ledger.tally("started")[key] >= times

        await eventually(begun, within, what=f"start {times} of {key}", every=0.05)

    # What is left -----------------------------------------------------------------------

    async def collect(self, ledger: Ledger) -> None:
        """What handlers wrote, and what each record tells of its life."""
        ledger.read_journal(self.journal)
        for job_id, record in (await self.records()).items():
            job, tail = record["job"], record["tail"]
            id = f"{job['type']}.{job_id}"
            for _n, at_ms, kind, came_from, *_ in tail:
                ledger.note("step", id, source="record", detail=f"{came_from} {kind}", at=at_ms)
            if job["state"] in OVER:
                at = (tail[-1][1] + 1) / 1000  # cut to a millisecond
                ledger.note("final", id, source="record", detail=job["state"], at=at)
            ledger.note("attempts", id, source="record", detail=str(job["attempt"]))


def killing(stage: OjsStage) -> Scenario:
    """One worker serves the mix and is killed in a window; everything must come out right."""

    async def load(ledger: Ledger, dice: Random) -> None:
        for job in a_mix(dice):
            await stage.put(job, ledger)

    return Scenario("ojs", stage.worker, load, stage.ended, stage.collect, LAWS, within=120)


# Laws ---------------------------------------------------------------------------------------


def ends_in_its_state(ledger: Ledger) -> list[Violation]:
    """What can succeed is completed; what cannot is discarded."""
    return [
        Violation("ends in its state", fact.id, fact.detail)
        for fact in ledger.of("final")
        if fact.detail != ("discarded" if _task(fact.id) in DISCARDED else "completed")
    ]


def nothing_happens_after_the_end(ledger: Ledger) -> list[Violation]:
    """No transition comes out of a final state."""
    return [
        Violation("nothing happens after the end", fact.id, fact.detail)
        for fact in ledger.of("step")
        if fact.detail.split()[0] in OVER
    ]


def every_start_is_an_attempt(ledger: Ledger) -> list[Violation]:
    """No handler begins that the record does not count, and none beyond its budget."""
    counted = {fact.id: int(fact.detail) for fact in ledger.of("attempts")}
    return [
        Violation("every start is an attempt", id, f"{count} starts, {counted.get(id)} attempts")
        for id, count in ledger.tally("started").items()
        if count > min(counted.get(id, 0), ATTEMPTS.get(_task(id), count))
    ]


LAWS: tuple[Law, ...] = (
    nothing_lost,
    no_start_after_final,
    every_run_was_asked_for,
    ends_in_its_state,
    nothing_happens_after_the_end,
    every_start_is_an_attempt,
)

_ROOT = Path(__file__).parents[2]


def _task(id: str) -> str:
    return id.partition(".")[0]


async def _quiet(error: Exception) -> None:
    """Servers and workers are killed on purpose here."""
