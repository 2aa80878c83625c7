"""natq under the knife: a server prepared for short waits, a mix of jobs, and its own laws.

What is judged is read with the stock client. The results bucket is made with a deep history
before the worker comes, so every record that was ever stored can be looked at afterwards,
and the consumers with a short ack wait, so that what a killed worker held comes back soon.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig
from nats.js.errors import KeyNotFoundError

from tests.chaos.app import LARGE, app
from tests.chaos.harness import Program, eventually
from tests.chaos.invariants import (
    Law,
    Ledger,
    Violation,
    every_run_was_asked_for,
    final_never_lives_again,
    finished_at_most_once,
    no_start_after_final,
    nothing_lost,
)
from tests.chaos.scenario import Scenario
from tests.chaos.servers import NatsServer

__all__ = ["LAWS", "MAX_PAYLOAD", "Load", "NatqStage", "a_mix", "killing"]

ACK_WAIT_S = 1.5
MAX_PAYLOAD = f"max_payload: {LARGE * 3 // 4}"
BAD_INPUTS = (b"{", b'{"runId": "two words"}')

STATUS = {"rejected": 400, "hopeless": 500, "deadly": 500}  # every other task ends with 200
ATTEMPTS = {"hopeless": 2, "deadly": 1}  # every other task has no limit


class Load(NamedTuple):
    """One job to put in: a task, its input and whether its result is to be dropped."""

    task: str
    run_id: str
    body: Mapping[str, Any] = {}
    drop: bool = False

    @property
    def key(self) -> str:
        return f"{self.task}.{self.run_id}"

    @property
    def payload(self) -> bytes:
        said = {"runId": self.run_id, **self.body}
        return json.dumps({**said, "dropResultOnSuccess": True} if self.drop else said).encode()


def a_mix(dice: Random) -> list[Load]:
    """Jobs of every kind, shuffled: small enough for one window, rich enough for all."""
    mix = [Load("plain", f"p{n}", {"n": n}) for n in range(6)]
    mix += [Load("plain", f"d{n}", {"n": n}, drop=True) for n in range(2)]
    mix += [Load("threaded", f"t{n}", {"n": n}) for n in range(2)]
    for task in ("flaky", "rejected"):
        mix += [Load(task, f"r{n}") for n in range(2)]
    mix += [Load(task, "r0") for task in ("hopeless", "paged", "saving", "snoozed", "large")]
    dice.shuffle(mix)
    return mix


@dataclass(eq=False)
class NatqStage:
    """A client of the server, and the programs that serve there."""

    server: NatsServer
    folder: Path
    client: Client
    js: JetStreamContext
    terminated: dict[int, str]

    @classmethod
    async def on(cls, server: NatsServer, folder: Path) -> NatqStage:
        """A stage that prepares ``server``, which holds nothing yet."""
        stage = await cls.at(server, folder)
        await stage._prepare()
        return stage

    @classmethod
    async def at(cls, server: NatsServer, folder: Path) -> NatqStage:
        """A stage on a server that is prepared already."""
        client = await nats.connect(
            server.url, error_cb=_quiet, reconnect_time_wait=0.05, max_reconnect_attempts=-1
        )
        return cls(server, folder, client, client.jetstream(timeout=20), {})

    async def close(self) -> None:
        await self.client.close()

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    def worker(self, env: Mapping[str, str] | None = None, *, url: str = "") -> Program:
        """``penstock worker`` with the application that is killed; not started yet."""
        return self.penstock("worker", "tests.chaos.app:app", "--natq", env=env, url=url)

    def penstock(
        self, *arguments: str, env: Mapping[str, str] | None = None, url: str = ""
    ) -> Program:
        """The command line on this server; not started yet."""
        settings = {
            "CHAOS_JOURNAL": str(self.journal),
            "PENSTOCK_NATS_URL": url or self.server.url,
            "PENSTOCK_NATQ__LARGE_RESULTS": "yes",
            "PENSTOCK_LOG__LEVEL": "warning",
            **(env or {}),
        }
        return Program([sys.executable, "-m", "penstock", *arguments], env=settings, cwd=_ROOT)

    async def ready(self, worker: Program) -> None:
        """Wait until ``worker`` says that it serves."""
        await worker.line("^serving ", within=60)

    # The load ---------------------------------------------------------------------------

    async def put(self, job: Load, ledger: Ledger) -> None:
        """Store one job; an ``enqueued`` fact once the server has acknowledged it."""
        await self.js.publish(f"natq.job.{job.task}", job.payload)
        ledger.note("enqueued", job.key)

    async def put_bad(self, payload: bytes, ledger: Ledger) -> None:
        ack = await self.js.publish("natq.job.plain", payload)
        ledger.note("refusable", f"message {ack.seq}")

    async def forget_message_ids_after(self, seconds: float) -> None:
        """Shorten the window in which the server keeps one of several messages with one id."""
        await self.limit("natq_jobs", duplicate_window=seconds)

    async def limit(self, stream: str, **limits: Any) -> None:
        """Change how much a stream takes."""
        config = (await self.js.stream_info(stream)).config
        await self.js.update_stream(config.evolve(**limits))

    async def wait_for_acks(self, seconds: float) -> None:
        """Lengthen the ack wait of every task."""
        for consumer in await self.js.consumers_info("natq_jobs"):
            await self.js.add_consumer("natq_jobs", consumer.config.evolve(ack_wait=seconds))

    async def drained(self, ledger: Ledger | None = None) -> bool:
        """Whether every job has left the queue."""
        return (await self.js.stream_info("natq_jobs")).state.messages == 0

    async def started(self, key: str, times: int, within: float = 60.0) -> None:
        """Wait until the handler of ``key`` has begun so often."""

        def begun() -> bool:
            ledger = Ledger()
            ledger.read_journal(self.journal)
            return ledger.tally("started")[key] >= times

        await eventually(begun, within, what=f"start {times} of {key}", every=0.05)

    def pids_at_work(self) -> set[int]:
        """The processes that have started handlers."""
        lines = self.journal.read_text().splitlines()
        return {int(json.loads(line)["pid"]) for line in lines}

    async def ended(self, key: str, within: float = 60.0) -> None:
        """Wait until ``key`` has a final record."""

        async def final() -> bool:
            return await self.status(key) not in (None, 100)

        await eventually(final, within, what=f"the end of {key}", every=0.05)

    async def all_ended(self, within: float = 60.0) -> None:
        await eventually(self.drained, within, what="the end of all jobs", every=0.05)

    # What is left -----------------------------------------------------------------------

    async def collect(self, ledger: Ledger) -> None:
        """Everything that the witnesses have to say: handlers, records, dead letters, notices."""
        ledger.read_journal(self.journal)
        bucket = await self.js.key_value("natq_results")
        await ledger.read_history(bucket, _kind_of)
        seen = ledger.ids("final")
        for gone in ledger.of("gone"):  # only dropped results go, and only once they were final
            if gone.id not in seen:
                ledger.note("final", gone.id, source="kv", detail="dropped", at=gone.at)
        for seq, reason in self.terminated.items():
            ledger.note("terminated", f"message {seq}", source="server", detail=reason)
        for id in await self._dead_letters():
            ledger.note("buried", id, source="natq_dead")
        for id in sorted(ledger.ids("final")):
            if id.startswith("large."):
                store = await self.js.object_store("natq_large_results")
                record = json.loads((await bucket.get(id)).value or b"")
                value = json.loads((await store.get(record["data"]["$object"])).data or b"")
                ledger.note("fetched", id, source="objects", detail=str(len(value)))

    async def status(self, key: str) -> int | None:
        """What the record of ``key`` says now; ``None`` if there is none."""
        bucket = await self.js.key_value("natq_results")
        try:
            return int(json.loads((await bucket.get(key)).value or b"")["status"])
        except KeyNotFoundError:
            return None

    async def statuses(self, key: str) -> list[int | None]:
        """Every status that the record of ``key`` ever had, oldest first; ``None``: deleted."""
        bucket = await self.js.key_value("natq_results")
        entries = await bucket.history(key)
        return [
            None if one.operation else json.loads(one.value or b"")["status"] for one in entries
        ]

    async def _dead_letters(self) -> list[str]:
        state = (await self.js.stream_info("natq_dead")).state
        found = []
        for seq in range(max(1, state.first_seq), state.last_seq + 1):
            headers = (await self.js.get_msg("natq_dead", seq)).headers or {}
            found.append(f"{headers['Penstock-Task']}.{headers['Penstock-Run']}")
        return found

    async def _prepare(self) -> None:
        await self.js.create_key_value(bucket="natq_results", history=64)
        await self.js.add_stream(
            StreamConfig(
                name="natq_jobs", subjects=["natq.job.>"], retention=RetentionPolicy.WORK_QUEUE
            )
        )
        for task in app.registry:
            if not task.replies:
                durable = f"natq_worker_{task.name}"
                subject = f"natq.job.{task.name}"
                await self.js.add_consumer(
                    "natq_jobs",
                    ConsumerConfig(
                        durable_name=durable, filter_subject=subject, ack_wait=ACK_WAIT_S
                    ),
                )
        notices = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.natq_jobs.>"
        await self.client.subscribe(notices, cb=self._note_terminated)
        await self.client.flush()

    async def _note_terminated(self, notice: Msg) -> None:
        said = json.loads(notice.data)
        self.terminated[said["stream_seq"]] = said.get("reason", "")


def killing(stage: NatqStage) -> Scenario:
    """One worker serves the mix and is killed in a window; everything must come out right."""

    async def load(ledger: Ledger, dice: Random) -> None:
        for job in a_mix(dice):
            await stage.put(job, ledger)
        for payload in BAD_INPUTS:
            await stage.put_bad(payload, ledger)

    return Scenario("natq", stage.worker, load, stage.drained, stage.collect, LAWS, within=90)


# Laws ---------------------------------------------------------------------------------------


def ends_as_it_should(ledger: Ledger) -> list[Violation]:
    """Each final record has the status of its task."""
    return [
        Violation("ends as it should", fact.id, fact.detail)
        for fact in ledger.of("final")
        if fact.detail != "dropped"
        and json.loads(fact.detail)["status"] != STATUS.get(_task(fact.id), 200)
    ]


def keeps_to_its_budget(ledger: Ledger) -> list[Violation]:
    """A task with an attempt limit is never started more often, crashes included."""
    return [
        Violation("keeps to its budget", id, f"started {count} times")
        for id, count in ledger.tally("started").items()
        if count > ATTEMPTS.get(_task(id), count)
    ]


def refusals_are_answered(ledger: Ledger) -> list[Violation]:
    """Every input that can never run was terminated."""
    missing = ledger.ids("refusable") - ledger.ids("terminated")
    return [Violation("refusals are answered", id, "never terminated") for id in missing]


def buried_once(ledger: Ledger) -> list[Violation]:
    """Whoever used up the attempts is a dead letter, once; nobody else is."""
    wanted = {id for id in ledger.ids("enqueued") if _task(id) in ATTEMPTS}
    copies = ledger.tally("buried")
    return [
        Violation("buried once", id, f"{copies[id]} dead letters")
        for id in wanted | set(copies)
        if copies[id] != (1 if id in wanted else 0)
    ]


def large_results_are_whole(ledger: Ledger) -> list[Violation]:
    """What a record refers to is there, in full."""
    return [
        Violation("large results are whole", fact.id, f"{fact.detail} characters")
        for fact in ledger.of("fetched")
        if fact.detail != str(LARGE)
    ]


LAWS: tuple[Law, ...] = (
    nothing_lost,
    finished_at_most_once,
    final_never_lives_again,
    no_start_after_final,
    every_run_was_asked_for,
    ends_as_it_should,
    keeps_to_its_budget,
    refusals_are_answered,
    buried_once,
    large_results_are_whole,
)

_ROOT = Path(__file__).parents[2]


def _task(id: str) -> str:
    return id.partition(".")[0]


def _kind_of(key: str, value: bytes) -> str:
    return "live" if json.loads(value)["status"] == 100 else "final"


async def _quiet(error: Exception) -> None:
    """Servers and workers are killed on purpose here."""
