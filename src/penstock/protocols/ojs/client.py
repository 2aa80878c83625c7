"""The OJS producer without HTTP: the same records, written straight to NATS.

It keeps no index, so that it is cheap to have one in every process: a job is one write. What
needs to know of all jobs (fetching, listing, statistics) is an engine's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from penstock.core import codec
from penstock.core.errors import BadInput, TaskFailed, Waited
from penstock.core.invocation import MISSING
from penstock.core.policy import BackoffKind, RetryPolicy
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.fields import object_of
from penstock.protocols.ojs.instants import duration_text
from penstock.protocols.ojs.intake import Pushed
from penstock.protocols.ojs.job import INPUT, WHOLE
from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.ojs.record import Record, decode_record
from penstock.protocols.ojs.refusal import Refusal, Refused

if TYPE_CHECKING:
    from penstock.broker.link import Link

__all__ = ["JobHandle", "OjsClient", "retry_of", "submission"]


class JobHandle:
    """A job that is stored. ``deduplicated``: it was there already under its unique key."""

    def __init__(self, client: OjsClient, record: Record, *, deduplicated: bool = False) -> None:
        self._client = client
        self.id = record.id
        self.record = record
        self.deduplicated = deduplicated

    async def result(self, timeout: float | None = None) -> Any:
        """What the handler returned, once it has. Raises `TaskFailed` or `Waited`."""
        return await self._client.result(self.id, timeout)

    async def state(self) -> str:
        """The state of the job now."""
        return (await self._client.get(self.id)).state


class OjsClient:
    """A producer on one link; made by `open`, ended by `close`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    async def open(cls, link: Link, options: OjsOptions | None = None) -> OjsClient:
        return cls(await Engine.open(link, options, services=False, follows=False))

    async def close(self) -> None:
        await self._engine.close()

    async def __aenter__(self) -> OjsClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def enqueue(
        self, job_type: str, body: Any = MISSING, /, *, id: str = "", **options: Any
    ) -> JobHandle:
        """Store one job. ``body``: a list goes as the arguments, anything else is the whole
        input. ``options`` as in the envelope (queue, priority, scheduled_at, retry, unique …),
        and ``meta``. Raises `Refused` when the job is not taken.
        """
        raw = submission(job_type, body, job_id=id, options=options)
        done = await self._engine.push(self._engine.submission(object_of(raw)))
        return self._handle(done)

    async def enqueue_many(
        self, jobs: Iterable[tuple[str, Any]], *, atomic: bool = False, **options: Any
    ) -> list[JobHandle]:
        """Store many jobs (type, body) with the same options. ``atomic``: all or none."""
        asked = [
            self._engine.submission(object_of(submission(kind, body, options=options)))
            for kind, body in jobs
        ]
        done = await self._engine.push_many(asked, atomic=atomic)
        if isinstance(done, Refusal):
            raise Refused(done)
        return [self._handle(one) for one in done]

    async def get(self, job_id: str) -> Record:
        """The job as it is now. Raises `Refused` when there is none."""
        found = await self._engine.info(job_id)
        if isinstance(found, Refusal):
            raise Refused(found)
        return found

    async def cancel(self, job_id: str, reason: str = "") -> Record:
        """Stop a job for good. Raises `Refused` when it is over."""
        done = await self._engine.cancel(job_id, reason=reason)
        if isinstance(done, Refusal):
            raise Refused(done)
        return done

    async def result(self, job_id: str, timeout: float | None = None) -> Any:
        """Wait for the end of a job: its result, or `TaskFailed`. `Waited` after ``timeout`` s."""
        try:
            async with asyncio.timeout(timeout):
                async for record in self.watch(job_id):
                    if record.is_terminal:
                        return _result_of(record)
        except TimeoutError:
            pass
        raise Waited(f"job {job_id} was not over after {timeout} s")

    async def watch(self, job_id: str) -> AsyncIterator[Record]:
        """The job as it is, and after each change, until it is removed."""
        watch = await self._engine.shared.room.jobs.watch(job_id)
        async with watch:
            async for entry in watch:
                if entry.deleted:
                    return
                record = decode_record(entry.value)
                if await self._engine.shared.books.store.is_visible(record):
                    yield record

    def _handle(self, done: Pushed | Refusal) -> JobHandle:
        if isinstance(done, Refusal):
            raise Refused(done)
        return JobHandle(self, done.record, deduplicated=done.deduplicated)


def submission(
    job_type: str, body: Any = MISSING, *, job_id: str = "", options: Mapping[str, Any] = {}
) -> bytes:
    """The envelope for one job, as any client would send it."""
    rest = dict(options)
    envelope: dict[str, Any] = {"type": job_type, "args": []}
    if isinstance(body, list | tuple):
        envelope["args"] = list(body)
    elif body is not MISSING:
        envelope["args"] = [body]
        envelope[INPUT] = msgspec.json.decode(WHOLE)
    if job_id:
        envelope["id"] = job_id
    if "meta" in rest:
        envelope["meta"] = rest.pop("meta")
    for name, value in rest.items():
        if isinstance(value, RetryPolicy):
            rest[name] = retry_of(value)
        elif isinstance(value, timedelta):
            rest[name] = duration_text(value)
    if rest:
        envelope["options"] = rest
    try:
        return codec.encode(envelope)
    except codec.JsonError as error:
        raise BadInput(str(error)) from error


def retry_of(policy: RetryPolicy) -> dict[str, Any]:
    """A task's retry policy in the words of the envelope."""
    backoff = policy.backoff
    kind = "exponential" if backoff.kind is BackoffKind.EXPONENTIAL else str(backoff.kind)
    said: dict[str, Any] = {
        "backoff_strategy": kind,
        "backoff_coefficient": backoff.factor,
        "jitter": backoff.jitter > 0,
    }
    if backoff.base > timedelta(0):
        said["initial_interval"] = duration_text(backoff.base)
        said["max_interval"] = duration_text(max(backoff.ceiling, backoff.base))
    else:
        said["backoff_strategy"] = "none"
    if policy.max_attempts is not None:
        said["max_attempts"] = policy.max_attempts
    if policy.never:
        said["non_retryable_errors"] = sorted(policy.never)
    return said


def _result_of(record: Record) -> Any:
    if record.state == "completed":
        result = record.job.result
        return msgspec.json.decode(result) if isinstance(result, Raw) else None
    error: Any = {}
    if isinstance(record.job.error, Raw):
        error = msgspec.json.decode(record.job.error)
    said = error.get("message") or f"the job was {record.state}"
    raise TaskFailed(record.job.type, record.id, 500, str(said), error or None)
