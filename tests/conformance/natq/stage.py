"""A stage: one server, the workers under test, and what a check may do and see there.

Checks act through `Stage.request` and `Stage.enqueue`, and look at what is stored
(`Stage.history`, `Stage.final`) and at what was said (`Stage.settled`, ``stage.tap``).
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from tests.chaos.harness import Program, eventually
from tests.chaos.servers import NatsServer
from tests.conformance.natq.registry import E2E, Failed
from tests.conformance.natq.tap import Settlement, Tap, parsed

__all__ = ["Job", "Reply", "Stage"]

_DEEP_HISTORY = 64
_LATE_TASKS = 0.3  # definitions still to come follow the seven more closely than this


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for a request; header names as spelled on the wire."""

    headers: dict[str, str]
    body: bytes

    @property
    def status(self) -> str | None:
        return self.headers.get("status")

    @property
    def error(self) -> str | None:
        return self.headers.get("error")

    @property
    def data(self) -> Any:
        return parsed(self.body) if self.body else None


@dataclass(frozen=True, slots=True)
class Job:
    """A published async input; ``seq`` is its place in ``natq_jobs``."""

    task: str
    run_id: str
    seq: int

    @property
    def key(self) -> str:
        return f"{self.task}.{self.run_id}"


@dataclass(eq=False)
class Stage:
    """``async with`` connects; workers are added afterwards and end with the stage."""

    url: str
    command: list[str]
    server: NatsServer | None = None
    workers: list[Program] = field(default_factory=list)
    definitions: dict[str, dict[str, Any]] = field(default_factory=dict)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    client: Client = field(init=False)
    js: JetStreamContext = field(init=False)
    tap: Tap = field(init=False)
    _starts_seen: dict[str, int] = field(default_factory=dict)

    async def __aenter__(self) -> Stage:
        self.client = await nats.connect(
            self.url, error_cb=_quiet, reconnect_time_wait=0.1, max_reconnect_attempts=-1
        )
        self.js = self.client.jetstream(timeout=10)
        self.tap = Tap(self.url)
        await self.tap.start()
        await self.client.subscribe("$KV.natq_tasks.>", cb=self._note_definition)
        await self.client.flush()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for worker in self.workers:
            await worker.stop()
        if "KV_natq_results" in self.configs:
            await self._set_history(1)
        await self.tap.stop()
        await self.client.close()

    # -- workers ----------------------------------------------------------------------

    async def add_worker(self, *, url: str | None = None, ready: bool = True) -> Program:
        """Start one more worker; with ``ready`` return once it has announced its tasks."""
        before = {task: self._starts_seen.get(task, 0) for task in E2E}
        worker = await Program(self.command, env={"NATS_URL": url or self.url}).start()
        self.workers.append(worker)
        if ready:
            await self._announced(worker, before)
            if not self.configs:
                await self._look_around()
            await self.listening()
        return worker

    async def _announced(self, worker: Program, before: dict[str, int]) -> None:
        def all_seven() -> bool:
            if not worker.running:
                raise Failed(f"the worker ended by itself:\n{worker.output[-1500:]}")
            return all(self._starts_seen.get(task, 0) > before[task] for task in E2E)

        try:
            await eventually(all_seven, within=30, what="the definition of all seven e2e tasks")
        except AssertionError as error:
            missing = [task for task in E2E if self._starts_seen.get(task, 0) <= before[task]]
            said = worker.output[-1500:]
            raise Failed(f"not announced in natq_tasks: {', '.join(missing)}\n{said}") from error
        known = -1
        while known != len(self.definitions):
            known = len(self.definitions)
            await asyncio.sleep(_LATE_TASKS)

    async def listening(self) -> None:
        """Definitions are written before subscriptions: wait until requests are answered."""

        async def answered() -> bool:
            try:
                await self.request("e2e-add", {"a": 1, "b": 1}, timeout=5)
            except nats.errors.NoRespondersError:
                return False
            return True

        said = "".join(worker.output[-1000:] for worker in self.workers if worker.output)
        await self.until(answered, 10, f"an answer to a first request\n{said}".rstrip())

    async def _look_around(self) -> None:
        """Note how the worker made its streams, then let the bucket remember every record."""
        for name in ("KV_natq_tasks", "KV_natq_results", "natq_jobs"):
            self.configs[name] = (await self.api(f"STREAM.INFO.{name}"))["config"]
        await self._set_history(_DEEP_HISTORY)

    async def _set_history(self, depth: int) -> None:
        config = {**self.configs["KV_natq_results"], "max_msgs_per_subject": depth}
        await self.api("STREAM.UPDATE.KV_natq_results", config)

    async def _note_definition(self, message: Any) -> None:
        task = message.subject.removeprefix("$KV.natq_tasks.")
        definition = parsed(message.data)
        if isinstance(definition, dict):
            self.definitions[task] = definition
        self._starts_seen[task] = self._starts_seen.get(task, 0) + 1

    # -- acting -----------------------------------------------------------------------

    async def api(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """A JetStream API call; its error is this check's failure."""
        data = json.dumps(body).encode() if body is not None else b""
        answer = await self.client.request(f"$JS.API.{subject}", data, timeout=10)
        said: dict[str, Any] = json.loads(answer.data)
        if "error" in said:
            raise Failed(f"{subject}: {said['error'].get('description')}")
        return said

    async def request(self, task: str, body: Any, timeout: float = 5.0) -> Reply:
        """Ask a sync task; bytes are sent as they are, anything else as JSON."""
        message = await self.client.request(f"natq.req.{task}", _bytes(body), timeout=timeout)
        return Reply(dict(message.headers or {}), message.data)

    async def enqueue(self, task: str, body: Any = None, *, run_id: str | None = None) -> Job:
        """Publish an async input; an object gets a fresh run id unless it brings one."""
        if isinstance(body, dict) or body is None:
            body = {"runId": run_id or fresh("run"), **(body or {})}
            run_id = str(body["runId"])
        ack = await self.js.publish(f"natq.job.{task}", _bytes(body), timeout=10)
        return Job(task, run_id or "", ack.seq)

    # -- looking ----------------------------------------------------------------------

    async def history(self, key: str) -> list[Any]:
        """Every stored record of a key, oldest first; ``None`` for a delete marker.

        Read from the stream itself: under load the stock client's own history can miss
        what arrives before it starts to listen.
        """
        records: list[Any] = []
        subject, seq = f"$KV.natq_results.{key}", 0
        while (stored := await self._next_stored(subject, seq + 1)) is not None:
            seq = stored["seq"]
            marker = b"KV-Operation:" in base64.b64decode(stored.get("hdrs", ""))
            records.append(None if marker else parsed(base64.b64decode(stored.get("data", ""))))
        return records

    async def _next_stored(self, subject: str, seq: int) -> Any:
        body = json.dumps({"seq": seq, "next_by_subj": subject}).encode()
        api = "$JS.API.STREAM.MSG.GET.KV_natq_results"
        answer = json.loads((await self.client.request(api, body, timeout=10)).data)
        if "error" in answer and answer["error"]["code"] != 404:
            raise Failed(f"reading {subject}: {answer['error'].get('description')}")
        return answer.get("message")

    async def statuses(self, key: str) -> list[Any]:
        """The same as statuses: ``[100, 200]``."""
        return [record and record.get("status") for record in await self.history(key)]

    async def record(self, key: str) -> Any:
        """The record as it stands; ``None`` if there is none."""
        bucket = await self.js.key_value("natq_results")
        try:
            return parsed((await bucket.get(key)).value or b"")
        except nats.js.errors.NotFoundError:
            return None

    async def final(self, key: str, within: float = 30.0) -> dict[str, Any]:
        """The first record that is stored with a status other than 100."""
        found: dict[str, Any] = {}

        async def ended() -> bool:
            record = await self.record(key)
            if isinstance(record, dict) and record.get("status") != 100:
                found.update(record)
            return bool(found)

        await self.until(ended, within, f"a final record of {key}")
        return found

    async def settled(self, job: Job, *verbs: str, within: float = 10.0) -> Settlement:
        """The first ACK, NAK or TERM of a job (or the first of ``verbs``)."""
        verbs = verbs or ("ACK", "NAK", "TERM")
        what = f"{'/'.join(verbs)} of {job.task} message {job.seq}"
        await self.until(lambda: bool(self.tap.about(job.seq, *verbs)), within, what)
        return self.tap.about(job.seq, *verbs)[0]

    async def until(self, holds: Callable[[], Any], within: float, what: str) -> None:
        """`Failed` unless it comes true in time."""
        try:
            await eventually(holds, within, what=what, every=0.03)
        except AssertionError as error:
            raise Failed(str(error)) from error

    async def stored(self, job: Job) -> bool:
        """Whether the message is still in the work queue."""
        try:
            await self.js.get_msg("natq_jobs", job.seq)
        except nats.js.errors.NotFoundError:
            return False
        return True


def fresh(prefix: str) -> str:
    """A run id that nobody used before."""
    return f"{prefix}-{time.time_ns()}-{os.urandom(3).hex()}"


def _bytes(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


async def _quiet(error: Exception) -> None:
    """Servers are stopped and workers killed on purpose here."""
