"""The natq producer: find tasks, ask them, put jobs in the queue, and get their results.

Works with workers of every SDK. A job always gets a run id here, so its result can be
found, and the run id is its message id, so sending it twice within the stream's window
stores it once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import UNSET

from penstock.broker.bulk import BulkReport, Outgoing, publish_many
from penstock.broker.errors import NoResponders, RequestTimeout
from penstock.broker.frames import header_lines, parse_headers
from penstock.broker.publisher import Refused, Stored, Unknown
from penstock.core import codec
from penstock.core.errors import BadInput, PenstockError, TaskFailed, UnknownName, Waited
from penstock.core.ids import uuid7
from penstock.core.invocation import MISSING
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.results import resolved
from penstock.protocols.natq.room import Room
from penstock.protocols.natq.schemas import Schemas
from penstock.protocols.natq.waiting import ResultWaits
from penstock.protocols.natq.wire import (
    Output,
    TaskDefinition,
    check_task_id,
    decode_definition,
    decode_output,
    result_key,
    submission,
)

if TYPE_CHECKING:
    from penstock.broker.link import Link

__all__ = ["Answer", "Job", "NatqClient", "NotEnqueued", "Run"]


class NotEnqueued(PenstockError):
    """The stream did not take the job. If the answer was lost, the job may be in it."""

    code = "natq.enqueue"


@dataclass(frozen=True, slots=True)
class Answer:
    """A sync task's whole answer: ``value`` is None when the body was empty."""

    status: int
    value: Any
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.status < 300


class Job(NamedTuple):
    """One job for `NatqClient.enqueue_many`."""

    task: str
    body: Any = MISSING
    run_id: str | None = None
    drop_result: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """A job that is in the queue. ``duplicate``: it was there already under this run id."""

    client: NatqClient
    task: str
    run_id: str
    duplicate: bool = False

    async def result(self, timeout: float | None = None) -> Any:
        """What the task returned, once it has. Raises `TaskFailed` or `Waited`."""
        return await self.client.result(self.task, self.run_id, timeout)

    async def status(self) -> Output | None:
        """The record as it stands: status 100 while it runs, None before it started."""
        return await self.client.status(self.task, self.run_id)


class NatqClient:
    """A producer on one link. Make it with `open`; closing the link ends it."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._waits = ResultWaits(room)
        self._schemas = Schemas(room)

    @classmethod
    async def open(cls, link: Link, options: NatqOptions | None = None) -> NatqClient:
        """Make or find what natq keeps on the server, so that jobs can wait for a worker."""
        room = await Room.open(link, options or NatqOptions())
        await room.ensure_stream()
        return cls(room)

    # Discovery ------------------------------------------------------------------------

    async def tasks(self) -> dict[str, TaskDefinition]:
        """Every task that some worker has announced, by id."""
        keys = await self.room.tasks.keys()
        entries = await self.room.tasks.get_many(keys)
        found = (decode_definition(entry.value) for entry in entries.values() if not entry.deleted)
        return {definition.id: definition for definition in sorted(found, key=lambda one: one.id)}

    async def task(self, task_id: str) -> TaskDefinition:
        """What is announced of one task. Raises `UnknownName` with the nearest."""
        entry = await self.room.tasks.get(check_task_id(task_id))
        if entry is None or entry.deleted:
            raise UnknownName("task", task_id, await self.room.tasks.keys())
        return decode_definition(entry.value)

    # Sync tasks -----------------------------------------------------------------------

    async def ask(self, task_id: str, body: Any = MISSING, *, timeout: float = 30.0) -> Answer:
        """Ask a sync task and take its answer as it is, errors included."""
        if self.room.options.enforce_schemas:
            await self._schemas.check_input(task_id, body)
        subject = self.room.options.sync_prefix + check_task_id(task_id)
        payload = b"{}" if body is MISSING else codec.encode(body)
        try:
            reply = await self.room.link.request(subject.encode(), payload, timeout=timeout)
        except NoResponders as error:
            raise await self._nobody(task_id) from error
        except RequestTimeout as error:
            raise Waited(
                f"{task_id} did not answer within {timeout:g} s",
                remedy="give it a longer timeout, or make it an async task",
            ) from error
        return _answer_of(reply.headers, reply.payload)

    async def call(self, task_id: str, body: Any = MISSING, *, timeout: float = 30.0) -> Any:
        """What a sync task returns. Raises `TaskFailed` for a status of 300 and more."""
        answer = await self.ask(task_id, body, timeout=timeout)
        if not answer.ok:
            raise TaskFailed(task_id, "", answer.status, answer.error, answer.value)
        return answer.value

    # Async tasks ----------------------------------------------------------------------

    async def enqueue(
        self,
        task_id: str,
        body: Any = MISSING,
        *,
        run_id: str | None = None,
        drop_result: bool = False,
        trace: str = "",
    ) -> Run:
        """Put a job in the queue; on return it is stored. Raises `NotEnqueued`."""
        if self.room.options.enforce_schemas:
            await self._schemas.check_input(task_id, body)
        own_id = run_id or uuid7()
        outgoing = self._outgoing(Job(task_id, body, own_id, drop_result), own_id, trace)
        stored = await self.room.publisher.publish(
            outgoing.subject, outgoing.payload, msg_id=outgoing.msg_id, headers=outgoing.headers
        )
        if isinstance(stored, Unknown):  # the message id makes one repeat safe
            stored = await self.room.publisher.publish(
                outgoing.subject, outgoing.payload, msg_id=outgoing.msg_id, headers=outgoing.headers
            )
        if not isinstance(stored, Stored):
            raise _refused(task_id, stored)
        return Run(self, task_id, own_id, stored.duplicate)

    async def enqueue_many(
        self, jobs: Iterable[Job] | AsyncIterable[Job], *, window: int = 1024
    ) -> BulkReport:
        """Put any number of jobs in the queue, at most ``window`` unconfirmed at a time.

        Memory does not grow with their number. The report counts what was stored, what was
        there already, and names each job that is not certainly in the queue.
        """
        outgoing: Iterable[Outgoing] | AsyncIterable[Outgoing]
        if isinstance(jobs, AsyncIterable):
            outgoing = (self._bulk(job) async for job in jobs)
        else:
            outgoing = map(self._bulk, jobs)
        return await publish_many(self.room.publisher, outgoing, window=window)

    # Results --------------------------------------------------------------------------

    async def status(self, task_id: str, run_id: str) -> Output | None:
        """The record of a run as it stands, None when there is none (yet, or any more)."""
        entry = await self.room.results.get(result_key(check_task_id(task_id), run_id))
        if entry is None or entry.deleted:
            return None
        return await resolved(decode_output(entry.value), self.room)

    async def output(self, task_id: str, run_id: str, timeout: float | None = None) -> Output:
        """The final record of a run, waiting for it. Raises `Waited`."""
        final = await self._waits.final(check_task_id(task_id), run_id, timeout)
        return await resolved(final, self.room)

    async def result(self, task_id: str, run_id: str, timeout: float | None = None) -> Any:
        """What a run returned. Raises `TaskFailed` for a final status of 300 and more."""
        output = await self.output(task_id, run_id, timeout)
        data = None if output.data is UNSET else output.data
        if output.status >= 300:
            error = output.error if isinstance(output.error, str) else ""
            raise TaskFailed(task_id, run_id, output.status, error, data)
        return data

    async def results(
        self, runs: Iterable[Run], *, timeout: float | None = None
    ) -> dict[str, Output]:
        """The final records of many runs by run id, through one watch per task."""
        wanted: dict[str, set[str]] = {}
        for run in runs:
            wanted.setdefault(run.task, set()).add(run.run_id)
        found: dict[str, Output] = {}
        async with asyncio.timeout(timeout):
            for task_id, run_ids in wanted.items():
                async for output in self._finals(task_id, run_ids):
                    found[output.id] = output
        return found

    # ----------------------------------------------------------------------------------

    async def _finals(self, task_id: str, run_ids: set[str]) -> AsyncIterator[Output]:
        missing = set(run_ids)
        watch = await self.room.results.watch(f"{task_id}.>")
        async with watch:
            async for entry in watch:
                run_id = entry.key.partition(".")[2]
                if run_id not in missing or entry.deleted:
                    continue
                output = decode_output(entry.value)
                if output.is_final:
                    missing.discard(run_id)
                    yield await resolved(output, self.room)
                if not missing:
                    return

    def _bulk(self, job: Job) -> Outgoing:
        return self._outgoing(job, job.run_id or uuid7())

    def _outgoing(self, job: Job, run_id: str, trace: str = "") -> Outgoing:
        subject = (self.room.options.async_prefix + check_task_id(job.task)).encode()
        payload = submission(job.body, run_id=run_id, drop_result=job.drop_result)
        headers = header_lines({"traceparent": trace}) if trace else None
        return Outgoing(subject, payload, msg_id=f"{job.task}.{run_id}", headers=headers)

    async def _nobody(self, task_id: str) -> PenstockError:
        known = await self.tasks()
        if task_id not in known:
            return UnknownName("task", task_id, known)
        if known[task_id].type == "async":
            return BadInput(
                f"{task_id!r} is an async task: it takes jobs, not calls",
                remedy=f"penstock task enqueue {task_id}, or client.enqueue()",
            )
        return NoWorker(f"no worker serves {task_id!r} at the moment")


class NoWorker(PenstockError):
    """A task is known, but nobody is there to answer for it."""

    code = "natq.no_worker"
    remedy = "start one: penstock worker module:app"


def _answer_of(headers: bytes | None, payload: bytes) -> Answer:
    fields = parse_headers(headers) if headers else {}
    status = fields.get("status", "200")
    value = codec.decode(payload) if payload else None
    return Answer(int(status) if status.isdigit() else 200, value, fields.get("error", ""))


def _refused(task_id: str, answer: Refused | Unknown) -> NotEnqueued:
    if isinstance(answer, Refused):
        return NotEnqueued(
            f"the stream refused the job of {task_id!r}: {answer.description}",
            remedy="make room in the stream, or raise its limits",
        )
    return NotEnqueued(
        f"no answer came for the job of {task_id!r}: {answer.reason}",
        remedy="enqueue it again under the same run id; the stream keeps one",
    )
