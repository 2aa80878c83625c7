"""The natq producer: find tasks, ask them, put jobs in the queue, and get their results.

Works with workers of every SDK. A job always gets a run id here, so its result can be
found, and the run id is its message id, so sending it twice within the stream's window
stores it once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import UNSET, Struct

from penstock.broker.bulk import BulkReport, Outgoing, publish_many
from penstock.broker.entry import Entry, Operation
from penstock.broker.errors import NoResponders, RequestTimeout
from penstock.broker.frames import header_lines, parse_headers
from penstock.broker.publisher import Refused, Stored, Unknown
from penstock.core import codec
from penstock.core.errors import (
    BadInput,
    ConfigError,
    PenstockError,
    TaskFailed,
    UnknownName,
    Waited,
)
from penstock.core.ids import uuid7
from penstock.core.invocation import MISSING
from penstock.protocols.natq.definitions import Definitions
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.results import ResultUnreadable, resolved
from penstock.protocols.natq.room import Room
from penstock.protocols.natq.waiting import ResultWaits, dropped
from penstock.protocols.natq.wire import (
    BadRunId,
    Output,
    TaskDefinition,
    TaskType,
    check_run_id,
    check_task_id,
    decode_output,
    encoded_input,
    payload,
    reserved_run_id,
    result_key,
)
from penstock.runtime.observe.traces import traceparent

if TYPE_CHECKING:
    from penstock.broker.link import Link, Reply

__all__ = ["Answer", "Job", "NatqClient", "NoWorker", "NotEnqueued", "Run"]


_PLAIN = b"NATS/1.0\r\nstatus: 200\r\n\r\n"  # what nearly every answer brings along


class NotEnqueued(PenstockError):
    """The stream did not take the job. If the answer was lost, the job may be in it."""

    code = "natq.enqueue"


class Answer(Struct, frozen=True):
    """A sync task's whole answer: ``value`` is None when the body was empty."""

    status: int
    value: Any
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.status < 300


class Job(NamedTuple):
    """One job for `enqueue_many`; only a client of an app knows tasks by their functions."""

    task: str | Callable[..., Any]
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
    seq: int | None = None

    async def result(self, timeout: float | None = None) -> Any:
        """What the task returned, once it has. Raises `TaskFailed` or `Waited`."""
        return await self.client.result(self.task, self.run_id, timeout, seq=self.seq)

    async def status(self) -> Output | None:
        """The record as it stands: status 100 while it runs, None before it started."""
        return await self.client.status(self.task, self.run_id)


def _as_it_is(job: Job) -> Job:
    return job


class NatqClient:
    """A producer on one link. Make it with `open`; closing the link ends it."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._waits = ResultWaits(room)
        self._definitions = Definitions(room)

    @classmethod
    async def open(cls, link: Link, options: NatqOptions | None = None) -> NatqClient:
        """Make or find what natq keeps on the server, so that jobs can wait for a worker."""
        room = await Room.open(link, options or NatqOptions())
        await room.ensure_stream()
        return cls(room)

    # Discovery ------------------------------------------------------------------------

    async def tasks(self) -> dict[str, TaskDefinition]:
        """Every task that some worker has announced, by id."""
        return await self._definitions.all()

    async def task(self, task_id: str) -> TaskDefinition:
        """What is announced of one task. Raises `UnknownName` with the nearest."""
        found = await self._definitions.read(task_id)
        if found is None:
            raise UnknownName("task", task_id, await self.room.tasks.keys())
        return found

    # Sync tasks -----------------------------------------------------------------------

    async def ask(self, task_id: str, body: Any = MISSING, *, timeout: float = 30.0) -> Answer:
        """Ask a sync task and take its answer as it is, errors included.

        Raises `BadInput`, `UnknownName` or `NoWorker` when nobody can answer, `Waited`.
        """
        if self.room.options.enforce_schemas:
            await self._definitions.check_input(task_id, TaskType.SYNC, body)
        known = await self._definitions.of(task_id, TaskType.SYNC)
        payload = b"{}" if body is MISSING else encoded_input(body)
        try:
            reply = await self._asked(task_id, known.subject, payload, timeout)
        except NoResponders as error:
            raise await self._nobody(task_id) from error
        except RequestTimeout as error:
            raise Waited(
                f"{task_id} did not answer within {timeout:g} s",
                remedy="give it a longer timeout, or make it an async task",
            ) from error
        return _answer_of(task_id, reply.headers, reply.payload)

    async def _asked(self, task_id: str, subject: bytes, payload: bytes, timeout: float) -> Reply:
        """Ask at ``subject``; where the task has moved since, if nobody is there any more."""
        headers = _trace_headers(traceparent())
        ask = self.room.link.request
        try:
            return await ask(subject, payload, headers=headers, timeout=timeout)
        except NoResponders:
            moved = await self._definitions.of(task_id, TaskType.SYNC, fresh=True)
            if moved.subject == subject:
                raise
        return await ask(moved.subject, payload, headers=headers, timeout=timeout)

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
        """Put a job in the queue; on return it is stored.

        Its run id is ``run_id``, else the ``runId`` of ``body``, else a new one. Raises
        `BadInput` for what can never run, `NotEnqueued` when the stream does not take it.
        ``trace``: a ``traceparent``; the one of the current span unless given.
        """
        if self.room.options.enforce_schemas:
            await self._definitions.check_input(task_id, TaskType.ASYNC, body)
        known = await self._definitions.of(task_id, TaskType.ASYNC)
        job = Job(task_id, body, run_id, drop_result)
        own_id = _run_id_of(job)
        outgoing = _outgoing(job, own_id, known.subject, trace or traceparent())
        stored = await self.room.publisher.publish(
            outgoing.subject, outgoing.payload, msg_id=outgoing.msg_id, headers=outgoing.headers
        )
        if isinstance(stored, Unknown):  # the message id makes one repeat safe
            stored = await self.room.publisher.publish(
                outgoing.subject, outgoing.payload, msg_id=outgoing.msg_id, headers=outgoing.headers
            )
        if not isinstance(stored, Stored):
            self._definitions.forget(task_id)
            raise _refused(task_id, outgoing.subject, stored)
        return Run(self, task_id, own_id, stored.duplicate, stored.seq)

    async def enqueue_many(
        self,
        jobs: Iterable[Job] | AsyncIterable[Job],
        *,
        window: int = 1024,
        prepare: Callable[[Job], Job] = _as_it_is,
    ) -> BulkReport:
        """Put any number of jobs in the queue, at most ``window`` unconfirmed at a time.

        Memory does not grow with their number. The report counts what was stored, what was
        there already, and names each job that is not certainly in the queue: a job that can
        never run (also one that ``prepare`` refuses) is counted and does not stop the others.
        """
        await self._definitions.learn()

        def made(job: Job) -> Outgoing:
            return self._bulk(job, prepare)

        outgoing: Iterable[Outgoing] | AsyncIterable[Outgoing]
        if isinstance(jobs, AsyncIterable):
            outgoing = (made(job) async for job in jobs)
        else:
            outgoing = map(made, jobs)
        return await publish_many(self.room.publisher, outgoing, window=window)

    # Results --------------------------------------------------------------------------

    async def status(self, task_id: str, run_id: str) -> Output | None:
        """The record of a run as it stands, None when there is none (yet, or any more)."""
        entry = await self.room.results.get(result_key(check_task_id(task_id), run_id))
        if entry is None or entry.deleted:
            return None
        return await resolved(_record_of(entry), self.room)

    async def output(
        self, task_id: str, run_id: str, timeout: float | None = None, *, seq: int | None = None
    ) -> Output:
        """The final record of a run, waiting for it. Raises `Waited`.

        ``seq``: the job's message, as `Run` knows it, to tell its end from an earlier run's.
        """
        final = await self._waits.final(check_task_id(task_id), run_id, timeout, seq)
        return await resolved(final, self.room)

    async def result(
        self, task_id: str, run_id: str, timeout: float | None = None, *, seq: int | None = None
    ) -> Any:
        """What a run returned. Raises `TaskFailed` for a final status of 300 and more."""
        output = await self.output(task_id, run_id, timeout, seq=seq)
        data = None if output.data is UNSET else output.data
        if output.status >= 300:
            error = output.error if isinstance(output.error, str) else ""
            raise TaskFailed(task_id, run_id, output.status, error, data)
        return data

    async def results(
        self, runs: Iterable[Run], *, timeout: float | None = None
    ) -> dict[str, Output]:
        """The final records of many runs by run id, through one watch per task.

        A result that was dropped before it was seen comes without data. Raises `Waited`, and
        `BadInput` for runs of two tasks that share a run id.
        """
        wanted: dict[str, dict[str, Run]] = {}
        for run in runs:
            wanted.setdefault(run.task, {})[run.run_id] = run
        count = sum(map(len, wanted.values()))
        if count > len(set[str]().union(*wanted.values())):
            raise BadInput(
                "two tasks share a run id, and results come by run id",
                remedy="gather the results of one task at a time",
            )
        found: dict[str, Output] = {}
        try:
            async with asyncio.timeout(timeout):
                for task_id, own in wanted.items():
                    async for output in self._finals(task_id, own):
                        found[output.id] = output
        except TimeoutError as error:
            raise Waited(
                f"{count - len(found)} of {count} results did not come within {timeout or 0:g} s",
                remedy="see whether a worker serves the task: penstock task ls",
            ) from error
        return found

    # ----------------------------------------------------------------------------------

    async def _finals(self, task_id: str, runs: Mapping[str, Run]) -> AsyncIterator[Output]:
        """First those that have ended, then the others as they end; nothing else is read."""
        missing = set(runs)
        watch = await self.room.results.watch(f"{task_id}.>", updates_only=True)
        async with watch:
            there = await self._standing([result_key(task_id, run_id) for run_id in runs], runs)
            async for entry in _after(there, watch):
                run_id = entry.key.partition(".")[2]
                if run_id not in missing:
                    continue
                if entry.operation is Operation.DEL:
                    output = dropped(task_id, run_id)
                elif entry.deleted:
                    continue
                else:
                    output = _record_of(entry)
                if output.is_final:
                    missing.discard(run_id)
                    yield await resolved(output, self.room)
                if not missing:
                    return

    async def _standing(self, keys: Iterable[str], runs: Mapping[str, Run]) -> list[Entry]:
        """The records as they are, without markers that earlier runs have left."""
        entries = await self.room.results.get_many(keys, leader=True)
        standing = []
        for entry in entries.values():
            seq = runs[entry.key.partition(".")[2]].seq
            if entry.operation is Operation.DEL and seq is not None:
                stream = self.room.options.stream
                if await self.room.jetstream.get_message(stream, seq) is not None:
                    continue
            standing.append(entry)
        return standing

    def _bulk(self, job: Job, prepare: Callable[[Job], Job]) -> Outgoing:
        try:
            job = prepare(job)
            task_id = str(job.task)
            known = self._definitions.at_hand(task_id)
            if known.validator is not None:
                self._definitions.check_at_hand(task_id, known, job.body)
            return _outgoing(job, _run_id_of(job), known.subject)
        except (BadInput, BadRunId, ConfigError) as error:
            return Outgoing(b"", b"", refusal=Refused(400, 0, _said(error)))

    async def _nobody(self, task_id: str) -> PenstockError:
        known = await self.tasks()
        if task_id not in known:
            return UnknownName("task", task_id, known)
        return NoWorker(f"no worker serves {task_id!r} at the moment")


class NoWorker(PenstockError):
    """A task is known, but nobody is there to answer for it."""

    code = "natq.no_worker"
    remedy = "start one: penstock worker module:app"


async def _after(first: Iterable[Entry], then: AsyncIterable[Entry]) -> AsyncIterator[Entry]:
    for entry in first:
        yield entry
    async for entry in then:
        yield entry


def _run_id_of(job: Job) -> str:
    """The one run id a job has: given beside its input, in it, or made."""
    inside = reserved_run_id(job.body)
    if job.run_id and inside and job.run_id != inside:
        raise BadInput(
            f"the job has two run ids, {job.run_id!r} and {inside!r} in its input",
            path="$.runId",
            remedy="give it once",
        )
    return check_run_id(job.run_id) if job.run_id else inside or uuid7()


def _trace_headers(trace: str) -> bytes | None:
    return header_lines({"traceparent": trace}) if trace else None


def _outgoing(job: Job, run_id: str, subject: bytes, trace: str = "") -> Outgoing:
    data = payload(job.body, run_id, job.drop_result)
    headers = _trace_headers(trace)
    return Outgoing(subject, data, msg_id=f"{job.task}.{run_id}", headers=headers)


def _said(error: PenstockError) -> str:
    where = f" at {error.path}" if isinstance(error, BadInput) and error.path != "$" else ""
    return f"{error.message}{where}; {error.remedy}" if error.remedy else error.message + where


def _record_of(entry: Entry) -> Output:
    try:
        return decode_output(entry.value)
    except codec.JsonError as error:
        raise ResultUnreadable(f"the record {entry.key} cannot be read: {error}") from error


def _answer_of(task_id: str, headers: bytes | None, payload: bytes) -> Answer:
    fields = parse_headers(headers) if headers and headers != _PLAIN else {}
    status = fields.get("status", "200")
    try:
        value = codec.decode(payload) if payload else None
    except codec.JsonError as error:
        raise ResultUnreadable(f"the answer of {task_id!r} is not JSON: {error}") from error
    code = int(status) if status.isascii() and status.isdigit() else 200
    return Answer(code, value, fields.get("error", ""))


def _refused(task_id: str, subject: bytes, answer: Refused | Unknown) -> NotEnqueued:
    if isinstance(answer, Refused) and answer.is_unheard:
        return NotEnqueued(
            f"no stream takes jobs of {task_id!r}, on {subject.decode()}",
            remedy="start a worker for it; compare its stream and prefix with this producer's",
        )
    if isinstance(answer, Refused):
        return NotEnqueued(
            f"the stream refused the job of {task_id!r}: {answer.description}",
            remedy="make room in the stream, or raise its limits",
        )
    return NotEnqueued(
        f"no answer came for the job of {task_id!r}: {answer.reason}",
        remedy="enqueue it again under the same run id; the stream keeps one",
    )
