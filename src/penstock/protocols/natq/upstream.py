"""The public names of the upstream Python SDK, so that its users change one import.

A thin face over our own worker: same constructor, same handler signature, same states and
error texts. What runs beneath is Penstock, so handlers run side by side, drains are real
and redeliveries do not rerun finished work.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, TextIO

from msgspec import UNSET

from penstock.core.binding import Binding
from penstock.core.context import Context
from penstock.core.errors import ConfigError
from penstock.core.ids import uuid7
from penstock.core.invocation import MISSING
from penstock.core.task import RunsIn, Task
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.schemas import input_validator, refuse_unfit
from penstock.protocols.natq.wire import Output, StatusCode, TaskDefinition, TaskType, check_task_id

if TYPE_CHECKING:
    from penstock.core.schema import Validator
    from penstock.protocols.natq.hosting import Hosted

__all__ = [
    "DefaultLogger",
    "JsonSerializable",
    "LogLevel",
    "Logger",
    "NatqWorker",
    "NatqWorkerOptions",
    "RegisteredTask",
    "StatusCode",
    "TaskContext",
    "TaskDefinition",
    "TaskHandler",
    "TaskRunInput",
    "TaskRunOutput",
    "TaskType",
    "WorkerState",
]

JsonSerializable = dict[str, Any] | list[Any] | str | int | float | bool | None


class LogLevel(IntEnum):
    DEBUG = 10
    INFO = 20
    WARN = 30
    ERROR = 40


class Logger(ABC):
    """Where a worker's lines go; each has ``workerId``, ``taskId`` and ``runId`` where known."""

    @abstractmethod
    def debug(self, message: str, **fields: Any) -> None: ...
    @abstractmethod
    def info(self, message: str, **fields: Any) -> None: ...
    @abstractmethod
    def warn(self, message: str, **fields: Any) -> None: ...
    @abstractmethod
    def error(self, message: str, **fields: Any) -> None: ...


class DefaultLogger(Logger):
    """One JSON object per line, from ``level`` upwards."""

    def __init__(self, level: LogLevel = LogLevel.INFO, stream: TextIO | None = None) -> None:
        self.level = level
        self._stream = stream

    def debug(self, message: str, **fields: Any) -> None:
        self._write(LogLevel.DEBUG, message, fields)

    def info(self, message: str, **fields: Any) -> None:
        self._write(LogLevel.INFO, message, fields)

    def warn(self, message: str, **fields: Any) -> None:
        self._write(LogLevel.WARN, message, fields)

    def error(self, message: str, **fields: Any) -> None:
        self._write(LogLevel.ERROR, message, fields)

    def _write(self, level: LogLevel, message: str, fields: dict[str, Any]) -> None:
        if level < self.level:
            return
        now = datetime.now(UTC).isoformat()
        line = {"timestamp": now, "level": level.name.lower(), "message": message, **fields}
        print(json.dumps(line, default=str), file=self._stream or sys.stdout, flush=True)


@dataclass(frozen=True, slots=True)
class NatqWorkerOptions:
    """The upstream options, plus how many handlers may run at once, and schemas that bind."""

    kv_bucket: str = "natq_tasks"
    results_bucket: str = "natq_results"
    stream_name: str = "natq_jobs"
    sync_subject_prefix: str = "natq.req."
    async_subject_prefix: str = "natq.job."
    heartbeat_interval_ms: int = 10_000
    log_level: LogLevel | str = LogLevel.INFO
    max_concurrency: int = 64
    max_requests: int = 1024
    enforce_schemas: bool = False

    def to_natq(self) -> NatqOptions:
        return NatqOptions(
            tasks_bucket=self.kv_bucket,
            results_bucket=self.results_bucket,
            stream=self.stream_name,
            sync_prefix=self.sync_subject_prefix,
            async_prefix=self.async_subject_prefix,
            heartbeat=timedelta(milliseconds=self.heartbeat_interval_ms),
            compat=True,
            enforce_schemas=self.enforce_schemas,
        )

    @property
    def level(self) -> LogLevel:
        if isinstance(self.log_level, str):
            return LogLevel[self.log_level.upper()]
        return self.log_level


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What a handler knows of its run. ``delivery`` is ours: hand-outs so far, from 1."""

    run_id: str
    task: TaskDefinition
    worker_id: str
    delivery: int = 1


@dataclass(frozen=True, slots=True)
class TaskRunInput:
    """The input without the reserved members, and those beside it."""

    data: Any
    run_id: str | None = None
    drop_result_on_success: bool = False


@dataclass(frozen=True, slots=True)
class TaskRunOutput:
    """What a handler answers; ``status`` decides what becomes of the job."""

    id: str
    task_id: str
    status: int
    data: Any = None
    error: str | None = None


TaskHandler = Callable[[TaskRunInput, TaskContext], Awaitable[TaskRunOutput]]


@dataclass(frozen=True, slots=True)
class RegisteredTask:
    definition: TaskDefinition
    handler: TaskHandler
    task: Task = field(repr=False, compare=False)


class WorkerState(StrEnum):
    """CREATED → register_task → CONFIGURED → start → RUNNING → stop → STOPPED."""

    CREATED = "created"
    CONFIGURED = "configured"
    RUNNING = "running"
    STOPPED = "stopped"


class NatqWorker:
    """Serves registered handlers until `stop`, or a SIGINT or SIGTERM."""

    def __init__(
        self, options: NatqWorkerOptions | None = None, logger: Logger | None = None
    ) -> None:
        self.options = options or NatqWorkerOptions()
        self.logger = logger or DefaultLogger(self.options.level)
        self.worker_id = uuid7()
        self.registry: dict[str, RegisteredTask] = {}
        self.state = WorkerState.CREATED
        self._hosted: Hosted | None = None

    def register_task(
        self,
        task_id: str,
        task_type: TaskType | str,
        handler: TaskHandler,
        *,
        input_schema: str | None = None,
        output_schema: str | None = None,
    ) -> None:
        """Add a handler. Raises ``RuntimeError`` once the worker has started."""
        if self.state in (WorkerState.RUNNING, WorkerState.STOPPED):
            raise RuntimeError("Cannot register tasks after worker has started")
        if task_id in self.registry:
            raise ConfigError(f"task {task_id!r} is registered twice", code="task.duplicate")
        options = self.options
        kind = TaskType(task_type)
        is_sync = kind is TaskType.SYNC
        prefix = options.sync_subject_prefix if is_sync else options.async_subject_prefix
        definition = TaskDefinition(
            id=check_task_id(task_id),
            type=kind,
            subject=prefix + task_id,
            input_schema=input_schema,
            output_schema=output_schema,
        )
        checked = input_validator(input_schema) if options.enforce_schemas else None
        task = _task_of(definition, handler, self.worker_id, checked)
        self.registry[task_id] = RegisteredTask(definition, handler, task)
        self.state = WorkerState.CONFIGURED

    async def start(self, nats_url: str | Any = "nats://localhost:4222") -> None:
        """Connect and serve. Takes a URL, or our connection options."""
        from penstock.protocols.natq.hosting import host

        if self.state is WorkerState.RUNNING:
            raise RuntimeError("Worker is already running")
        self._hosted = await host(self, nats_url)
        self.state = WorkerState.RUNNING
        self.logger.info("Worker started", workerId=self.worker_id, tasks=sorted(self.registry))

    async def stop(self) -> None:
        """Take no more, let running handlers finish, close. Safe to repeat."""
        if self._hosted is not None:
            await self._hosted.stop()
            await self.wait()

    async def wait(self) -> None:
        """Return when the worker has stopped, by `stop` or by a signal. Ours, not upstream's."""
        if self._hosted is None:
            return
        await self._hosted.wait()
        if self.state is not WorkerState.STOPPED:
            self.state = WorkerState.STOPPED
            self.logger.info("Worker stopped", workerId=self.worker_id)


class _Passing(Binding):
    """Hands input and output through as they are: upstream handlers do their own checking."""

    __slots__ = ()

    def encode_result(self, value: Any) -> Any:
        return value


def _task_of(
    definition: TaskDefinition, handler: TaskHandler, worker_id: str, checked: Validator | None
) -> Task:
    async def run(ctx: Context, data: Any = None) -> Output:
        given = ctx.invocation.wire
        body = {} if data is MISSING or data is None else data
        if checked is not None:
            refuse_unfit(checked, body, f"the input of {definition.id!r}")
        taken = TaskRunInput(body, given.run_id, given.drop_result)
        context = TaskContext(ctx.run_id, definition, worker_id, ctx.delivery)
        return _output_of(await handler(taken, context), definition.id, ctx.run_id)

    return Task(
        name=definition.id,
        fn=run,
        binding=_Passing.of(run, shape="whole"),
        runs_in=RunsIn.LOOP,
        replies=definition.type is TaskType.SYNC,
    )


def _output_of(answer: Any, task_id: str, run_id: str) -> Output:
    """A handler's answer with the ids it belongs to; bare data is a success."""
    if not isinstance(answer, TaskRunOutput):
        if answer is None:
            raise TypeError("the handler returned nothing instead of a TaskRunOutput")
        return Output(run_id, task_id, int(StatusCode.OK), answer)
    data = UNSET if answer.data is None else answer.data
    return Output(run_id, task_id, int(answer.status), data, answer.error or UNSET)
