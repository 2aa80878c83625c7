"""OmniQ under the knife: a Redis that may die, a mix of jobs, and its own laws.

What is judged is read from the keys with redis-py. Results are kept beside their queues, so a
completed job can be told from one that was lost even after its hash was trimmed away.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import redis
import redis.asyncio

from penstock.protocols.omniq.client import OmniqClient
from tests.chaos.harness import Program, eventually
from tests.chaos.invariants import (
    Law,
    Ledger,
    Violation,
    every_run_was_asked_for,
    finished_at_most_once,
    no_start_after_final,
    nothing_lost,
)
from tests.chaos.natq_stage import Load
from tests.chaos.scenario import Scenario
from tests.chaos.servers import RedisServer
from tests.protocols.omniq.invariants import check_invariants

__all__ = ["LAWS", "LEASE_MS", "OmniqStage", "a_mix", "killing"]

LEASE_MS = 1200
ATTEMPTS = {"hopeless": 2, "deadly": 2}  # every other job may be run twenty times
FAILS = ("rejected", *ATTEMPTS)
GIVES_BACK = ("paged", "snoozed")  # tasks whose handler gives attempts back


def a_mix(dice: Random) -> list[Load]:
    """Jobs of every kind, some of them in groups, shuffled."""
    mix = [Load("plain", f"p{n}", {"n": n}) for n in range(8)]
    mix += [Load("threaded", f"g{n}", {"n": n}) for n in range(6)]
    for task in ("flaky", "rejected", "hopeless", "paged", "saving", "snoozed"):
        mix += [Load(task, f"r{n}") for n in range(2)]
    dice.shuffle(mix)
    return mix


@dataclass(eq=False)
class OmniqStage:
    """A Redis, a producer on it, and the programs that serve its queues."""

    server: RedisServer
    folder: Path
    client: OmniqClient

    @classmethod
    async def on(cls, server: RedisServer, folder: Path) -> OmniqStage:
        return cls(server, folder, OmniqClient(server.url))

    async def close(self) -> None:
        await self.client.close()

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    def worker(self, env: Mapping[str, str] | None = None, *, url: str = "") -> Program:
        """``penstock worker`` with the application that is killed; not started yet."""
        command = [sys.executable, "-m", "penstock", "worker", "tests.chaos.app:app", "--omniq"]
        settings = {
            "CHAOS_JOURNAL": str(self.journal),
            "PENSTOCK_REDIS_URL": url or self.server.url,
            "PENSTOCK_OMNIQ__RESULT_TTL": "10m",
            "PENSTOCK_OMNIQ__UPKEEP": "300ms",
            "PENSTOCK_LOG__LEVEL": "warning",
            **(env or {}),
        }
        return Program(command, env=settings, cwd=_ROOT)

    async def ready(self, worker: Program) -> None:
        """Wait until ``worker`` says that it serves."""
        await worker.line("^serving ", within=60)

    # The load ---------------------------------------------------------------------------

    async def put(self, job: Load, ledger: Ledger) -> None:
        """Publish one job; an ``enqueued`` fact once Redis has answered."""
        await self.client.publish(
            queue=job.task,
            payload=dict(job.body),
            job_id=job.run_id,
            timeout_ms=LEASE_MS,
            backoff_ms=20,
            max_attempts=ATTEMPTS.get(job.task, 20),
            gid="family" if job.run_id.startswith("g") else None,
            group_limit=2,
        )
        ledger.note("enqueued", job.key)

    async def ended(self, ledger: Ledger) -> bool:
        """Whether every acknowledged job is completed or failed."""
        live: set[str] = set()
        async with self._keys() as keys:
            for queue in sorted({_task(id) for id in ledger.ids("enqueued")}):
                states = await self._states(keys, queue)
                live |= {f"{queue}.{job_id}" for job_id, state in states.items() if state == "live"}
        return not (live & ledger.ids("enqueued"))

    async def all_ended(self, ledger: Ledger, within: float = 60.0) -> None:
        async def over() -> bool:
            return await self.ended(ledger)

        await eventually(over, within, what="the end of all jobs", every=0.05)

    async def lengths(self, queue: str) -> int:
        """How many jobs of a queue wait, run or are delayed."""
        async with self._keys() as keys:
            base = f"{{{queue}}}"
            return int(
                await keys.llen(f"{base}:wait")
                + await keys.zcard(f"{base}:active")
                + await keys.zcard(f"{base}:delayed")
            )

    async def started(self, key: str, times: int, within: float = 60.0) -> None:
        """Wait until the handler of ``key`` has begun so often."""

        def begun() -> bool:
            ledger = Ledger()
            ledger.read_journal(self.journal)
            return ledger.tally("started")[key] >= times

        await eventually(begun, within, what=f"start {times} of {key}", every=0.05)

    # What is left -----------------------------------------------------------------------

    async def collect(self, ledger: Ledger) -> None:
        """What handlers wrote, how each job ended, and whether the queues are in order."""
        ledger.read_journal(self.journal)
        async with self._keys() as keys:
            for queue in sorted({_task(id) for id in ledger.ids("enqueued")}):
                await self._collect(keys, queue, ledger)
        with redis.Redis.from_url(self.server.url, decode_responses=True) as client:
            for queue in sorted({_task(id) for id in ledger.ids("enqueued")}):
                try:
                    check_invariants(client, queue)
                except AssertionError as error:
                    ledger.note("disorder", queue, source="keys", detail=str(error))

    async def _collect(self, keys: redis.asyncio.Redis, queue: str, ledger: Ledger) -> None:
        base = f"{{{queue}}}"
        for lane in ("completed", "failed"):
            for job_id in await keys.lrange(f"{base}:{lane}", 0, -1):
                job = await keys.hgetall(f"{base}:job:{job_id}")
                ended_at = (int(job.get("updated_ms") or 0) + 1) / 1000  # cut to a millisecond
                ledger.note("final", f"{queue}.{job_id}", source="keys", detail=lane, at=ended_at)
        kept = ledger.ids("final")
        async for key in keys.scan_iter(match=f"{base}:x:result:*", count=1000):
            id = f"{queue}.{key.removeprefix(f'{base}:x:result:')}"
            if id not in kept:  # trimmed from the hundred that Redis keeps
                ledger.note("final", id, source="results", detail="completed")

    async def _states(self, keys: redis.asyncio.Redis, queue: str) -> dict[str, str]:
        found: dict[str, str] = {}
        async for key in keys.scan_iter(match=f"{{{queue}}}:job:*", count=1000):
            state = await keys.hget(key, "state")
            over = state in ("completed", "failed", None)
            found[key.rpartition(":job:")[2]] = "over" if over else "live"
        return found

    def _keys(self) -> redis.asyncio.Redis:
        return redis.asyncio.Redis.from_url(self.server.url, decode_responses=True)


def killing(stage: OmniqStage) -> Scenario:
    """One worker serves the mix and is killed in a window; everything must come out right."""

    async def load(ledger: Ledger, dice: Random) -> None:
        for job in a_mix(dice):
            await stage.put(job, ledger)

    return Scenario("omniq", stage.worker, load, stage.ended, stage.collect, LAWS, within=90)


# Laws ---------------------------------------------------------------------------------------


def ends_in_its_lane(ledger: Ledger) -> list[Violation]:
    """What can succeed completes; what cannot fails."""
    return [
        Violation("ends in its lane", fact.id, fact.detail)
        for fact in ledger.of("final")
        if fact.detail != ("failed" if _task(fact.id) in FAILS else "completed")
    ]


def keeps_to_its_budget(ledger: Ledger) -> list[Violation]:
    """No job is started more often than it may be, crashes included."""
    return [
        Violation("keeps to its budget", id, f"started {count} times")
        for id, count in ledger.tally("started").items()
        if count > ATTEMPTS.get(_task(id), count)
    ]


def every_lease_counts_once(ledger: Ledger) -> list[Violation]:
    """No two starts are the same attempt, but for tasks that give attempts back."""
    starts = [
        (fact.id, fact.detail)
        for fact in ledger.of("started")
        if _task(fact.id) not in (*GIVES_BACK, "held", "held_thread", "held_process")
    ]
    twice = {start for start in starts if starts.count(start) > 1}
    return [Violation("every lease counts once", id, detail) for id, detail in sorted(twice)]


def queues_are_in_order(ledger: Ledger) -> list[Violation]:
    """The reference's own invariants hold for every key."""
    return [
        Violation("queues are in order", fact.id, fact.detail) for fact in ledger.of("disorder")
    ]


LAWS: tuple[Law, ...] = (
    nothing_lost,
    finished_at_most_once,
    no_start_after_final,
    every_run_was_asked_for,
    ends_in_its_lane,
    keeps_to_its_budget,
    every_lease_counts_once,
    queues_are_in_order,
)

_ROOT = Path(__file__).parents[2]


def _task(id: str) -> str:
    return id.partition(".")[0]
