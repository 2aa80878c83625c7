"""The upstream SDK's names: its users change one import, and everything is as they know it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest

import penstock.protocols.natq as natq
from penstock.broker.options import NatsOptions
from penstock.core.errors import ConfigError, PenstockError, TaskFailed
from penstock.core.ids import uuid7_instant
from penstock.protocols.natq import (
    DefaultLogger,
    Logger,
    LogLevel,
    NatqClient,
    NatqOptions,
    NatqWorker,
    NatqWorkerOptions,
    StatusCode,
    TaskContext,
    TaskRunInput,
    TaskRunOutput,
    TaskType,
)

if TYPE_CHECKING:
    from penstock.broker.embedded import EmbeddedNats
    from penstock.broker.link import Link

Worker = Callable[..., NatqWorker]


class Heard(Logger):
    """Keeps what a worker says."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def debug(self, message: str, **fields: Any) -> None:
        self.lines.append(("debug", message, fields))

    def info(self, message: str, **fields: Any) -> None:
        self.lines.append(("info", message, fields))

    def warn(self, message: str, **fields: Any) -> None:
        self.lines.append(("warn", message, fields))

    def error(self, message: str, **fields: Any) -> None:
        self.lines.append(("error", message, fields))


@pytest.fixture
async def make(options: NatqOptions) -> AsyncIterator[Worker]:
    """Workers on this test's own names; whatever still runs is stopped after the test."""
    made: list[NatqWorker] = []

    def worker(logger: Logger | None = None, **more: Any) -> NatqWorker:
        chosen = NatqWorkerOptions(
            kv_bucket=options.tasks_bucket,
            results_bucket=options.results_bucket,
            stream_name=options.stream,
            sync_subject_prefix=options.sync_prefix,
            async_subject_prefix=options.async_prefix,
            **more,
        )
        made.append(NatqWorker(chosen, logger or Heard()))
        return made[-1]

    yield worker
    for one in made:
        await one.stop()


def ok(ctx: TaskContext, data: Any = None) -> TaskRunOutput:
    return TaskRunOutput(id=ctx.run_id, task_id=ctx.task.id, status=StatusCode.OK, data=data)


async def echo(given: TaskRunInput, ctx: TaskContext) -> TaskRunOutput:
    return ok(ctx, given.data)


# Before the start -------------------------------------------------------------------------


def test_every_public_name_of_the_upstream_sdk_is_there() -> None:
    for name in (
        "DefaultLogger", "JsonSerializable", "LogLevel", "Logger", "NatqWorker",
        "NatqWorkerOptions", "RegisteredTask", "StatusCode", "TaskContext", "TaskDefinition",
        "TaskHandler", "TaskRunInput", "TaskRunOutput", "TaskType",
    ):  # fmt: skip
        assert getattr(natq, name) is not None
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = natq.Nonsense


def test_the_options_are_those_of_the_page() -> None:
    options = NatqWorkerOptions()

    assert (options.kv_bucket, options.results_bucket) == ("natq_tasks", "natq_results")
    assert options.stream_name == "natq_jobs"
    assert options.sync_subject_prefix == "natq.req."
    assert options.async_subject_prefix == "natq.job."
    assert options.heartbeat_interval_ms == 10_000
    assert options.level is LogLevel.INFO
    assert NatqWorkerOptions(log_level="debug").level is LogLevel.DEBUG


def test_a_worker_has_a_uuid7_from_its_construction() -> None:
    assert uuid7_instant(NatqWorker().worker_id) is not None


def test_registering_makes_a_definition_with_its_subject_and_schemas() -> None:
    worker = NatqWorker()
    worker.register_task("send-email", TaskType.SYNC, echo, input_schema='{"type":"object"}')
    worker.register_task("pack", "async", echo, output_schema="{}")

    email = worker.registry["send-email"].definition
    assert (email.id, email.type, email.subject) == (
        "send-email", TaskType.SYNC, "natq.req.send-email",
    )  # fmt: skip
    assert email.input_schema == '{"type":"object"}'
    assert worker.registry["pack"].definition.subject == "natq.job.pack"
    assert worker.registry["pack"].handler is echo


@pytest.mark.parametrize(("task_id", "kind", "error"), [
    ("a.b", "async", ConfigError), ("", "sync", ConfigError), ("a b", "sync", ConfigError),
    ("a", "later", ValueError),
])  # fmt: skip
def test_a_task_that_the_wire_cannot_carry_is_refused(
    task_id: str, kind: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        NatqWorker().register_task(task_id, kind, echo)


def test_a_task_is_registered_once() -> None:
    worker = NatqWorker()
    worker.register_task("a", "sync", echo)

    with pytest.raises(ConfigError, match="registered twice"):
        worker.register_task("a", "async", echo)


# Running ----------------------------------------------------------------------------------


async def test_its_states_and_the_errors_of_a_wrong_order(
    make: Worker, nats_server: EmbeddedNats
) -> None:
    worker = make()
    states = [worker.state]
    worker.register_task("a", TaskType.SYNC, echo)
    states.append(worker.state)
    await worker.start(nats_server.url)
    states.append(worker.state)
    with pytest.raises(RuntimeError, match="Cannot register tasks after worker has started"):
        worker.register_task("b", TaskType.SYNC, echo)
    with pytest.raises(RuntimeError, match="Worker is already running"):
        await worker.start(nats_server.url)
    await worker.stop()
    await worker.stop()
    states.append(worker.state)

    assert [str(state) for state in states] == ["created", "configured", "running", "stopped"]


async def test_a_handler_gets_data_and_context_as_it_knows_them(
    make: Worker, nats_server: EmbeddedNats, client: NatqClient
) -> None:
    seen: list[tuple[TaskRunInput, TaskContext]] = []

    async def handler(given: TaskRunInput, ctx: TaskContext) -> TaskRunOutput:
        seen.append((given, ctx))
        return ok(ctx, {"n": given.data["n"]})

    worker = make()
    worker.register_task("both", TaskType.ASYNC, handler)
    await worker.start(NatsOptions.from_url(nats_server.url))
    run = await client.enqueue("both", {"n": 1}, run_id="r-1", drop_result=True)
    await run.result(10)

    ((given, ctx),) = seen
    assert given == TaskRunInput({"n": 1}, "r-1", drop_result_on_success=True)
    assert (ctx.run_id, ctx.worker_id, ctx.delivery) == ("r-1", worker.worker_id, 1)
    assert ctx.task is worker.registry["both"].definition


async def test_the_status_of_an_answer_decides(
    make: Worker, nats_server: EmbeddedNats, client: NatqClient
) -> None:
    async def handler(given: TaskRunInput, ctx: TaskContext) -> TaskRunOutput:
        status = given.data["status"]
        return TaskRunOutput(ctx.run_id, ctx.task.id, status, {"s": status}, "why")

    async def failing(given: TaskRunInput, ctx: TaskContext) -> TaskRunOutput:
        if ctx.delivery == 1:
            return TaskRunOutput(ctx.run_id, ctx.task.id, 503, error="later")
        return ok(ctx, {"delivery": ctx.delivery})

    worker = make()
    worker.register_task("say", TaskType.ASYNC, handler)
    worker.register_task("ask", TaskType.SYNC, handler)
    worker.register_task("failing", TaskType.ASYNC, failing)
    await worker.start(nats_server.url)

    retried = await client.enqueue("failing")
    rejected = await client.output("say", (await client.enqueue("say", {"status": 404})).run_id, 10)
    answer = await client.ask("ask", {"status": 302})

    assert (rejected.status, rejected.data, rejected.error) == (404, {"s": 404}, "why")
    assert (answer.status, answer.value, answer.error) == (302, {"s": 302}, "why")
    assert await retried.result(15) == {"delivery": 2}


async def test_an_exception_is_a_500_with_the_words_of_upstream(
    make: Worker, nats_server: EmbeddedNats, client: NatqClient
) -> None:
    async def broken(given: TaskRunInput, ctx: TaskContext) -> TaskRunOutput:
        raise ValueError("no such file")

    async def silent(given: TaskRunInput, ctx: TaskContext) -> Any:
        return None

    worker = make()
    worker.register_task("broken", TaskType.SYNC, broken)
    worker.register_task("silent", TaskType.SYNC, silent)
    await worker.start(nats_server.url)

    with pytest.raises(TaskFailed, match="500: Unhandled exception: no such file"):
        await client.call("broken")
    with pytest.raises(TaskFailed, match="500: Unhandled exception: the handler returned nothing"):
        await client.call("silent")


async def test_bare_data_is_a_success(
    make: Worker, nats_server: EmbeddedNats, client: NatqClient
) -> None:
    async def bare(given: TaskRunInput, ctx: TaskContext) -> Any:
        return {"bare": True}

    worker = make()
    worker.register_task("bare", TaskType.ASYNC, bare)
    await worker.start(nats_server.url)

    run = await client.enqueue("bare")

    assert (await client.output("bare", run.run_id, 10)).task_id == "bare"
    assert await run.result(10) == {"bare": True}


async def test_truthy_values_drop_a_result_as_upstream_does(
    make: Worker, nats_server: EmbeddedNats, client: NatqClient, link: Link, options: NatqOptions
) -> None:
    worker = make()
    worker.register_task("echo", TaskType.ASYNC, echo)
    await worker.start(nats_server.url)

    payload = b'{"runId":"r","dropResultOnSuccess":"yes"}'
    await client.room.publisher.publish(f"{options.async_prefix}echo".encode(), payload)

    assert (await client.output("echo", "r", 10)).status == 200
    async with asyncio.timeout(10):
        while await client.status("echo", "r") is not None:
            await asyncio.sleep(0.01)


async def test_definitions_are_announced_as_registered_and_only_once(
    make: Worker, nats_server: EmbeddedNats, client: NatqClient
) -> None:
    worker = make()
    worker.register_task("a", TaskType.SYNC, echo, input_schema='{ "type": "object" }')
    watch = await client.room.tasks.watch(">", updates_only=True)
    async with watch:
        await worker.start(nats_server.url)
        await client.room.tasks.put("end", b"{}")
        entries = []
        async for entry in watch:
            if entry.key == "end":
                break
            entries.append(json.loads(entry.value))

    assert entries == [{
        "id": "a", "type": "sync", "subject": worker.registry["a"].definition.subject,
        "inputSchema": '{ "type": "object" }',
    }]  # fmt: skip


async def test_schemas_bind_where_that_is_asked_for(
    make: Worker, nats_server: EmbeddedNats, client: NatqClient
) -> None:
    async def half(given: TaskRunInput, ctx: TaskContext) -> TaskRunOutput:
        return ok(ctx, given.data["n"] / 2)

    worker = make(enforce_schemas=True)
    schemas = {
        "input_schema": '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}',
        "output_schema": '{"type":"number","multipleOf":1}',
    }
    worker.register_task("half", TaskType.SYNC, half, **schemas)
    worker.register_task("half-later", TaskType.ASYNC, half, **schemas)
    await worker.start(nats_server.url)

    assert await client.call("half", {"n": 4}) == 2
    wrong_in = await client.ask("half", {"n": "four"})
    wrong_out = await client.ask("half", {"n": 3})
    run = await client.enqueue("half-later", {"n": 3})
    ended = await client.output("half-later", run.run_id, 10)

    assert wrong_in.status == 400
    assert "$.n" in wrong_in.error
    assert wrong_out.status == 500
    assert "the result of 'half' does not fit its schema" in wrong_out.error
    assert ended.status == 500  # its work is done: it is not run again
    assert "does not fit its schema" in str(ended.error)


async def test_a_schema_that_is_none_is_refused_at_registration(make: Worker) -> None:
    with pytest.raises(ConfigError, match="schema"):
        make(enforce_schemas=True).register_task(
            "a", TaskType.SYNC, echo, input_schema='{"type": 7}'
        )


async def test_a_start_that_fails_leaves_nothing_open_and_may_be_tried_again(
    make: Worker, nats_server: EmbeddedNats, client: NatqClient
) -> None:
    worker = make()
    worker.register_task("echo", TaskType.SYNC, echo)
    handlers = list(logging.getLogger("penstock").handlers)

    with pytest.raises(PenstockError):
        await worker.start("nats://127.0.0.1:1")
    assert logging.getLogger("penstock").handlers == handlers

    await worker.start(nats_server.url)
    assert await client.call("echo", {"a": 1}) == {"a": 1}


async def test_stop_lets_a_running_job_finish(
    make: Worker, nats_server: EmbeddedNats, client: NatqClient
) -> None:
    started, released = asyncio.Event(), asyncio.Event()

    async def slow(given: TaskRunInput, ctx: TaskContext) -> TaskRunOutput:
        started.set()
        await released.wait()
        return ok(ctx, "finished")

    worker = make()
    worker.register_task("slow", TaskType.ASYNC, slow)
    await worker.start(nats_server.url)
    run = await client.enqueue("slow")
    await asyncio.wait_for(started.wait(), 10)
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    released.set()
    await stopping

    assert await run.result(5) == "finished"


# Logging ----------------------------------------------------------------------------------


async def test_lines_carry_worker_task_and_run_and_stay_with_their_worker(
    make: Worker, nats_server: EmbeddedNats, client: NatqClient, unique: str
) -> None:
    async def broken(given: TaskRunInput, ctx: TaskContext) -> TaskRunOutput:
        raise ValueError("boom")

    ours, others = Heard(), Heard()
    worker, other = make(ours), make(others)
    worker.register_task("broken", TaskType.SYNC, broken)
    other.register_task("echo", TaskType.SYNC, echo)
    await worker.start(nats_server.url)
    await other.start(nats_server.url)
    await client.ask("broken", {"runId": "r-1"})
    await worker.stop()

    (line,) = [one for one in ours.lines if "boom" in one[1]]
    assert line[0] == "warn"
    assert line[2] == {"workerId": worker.worker_id, "taskId": "broken", "runId": "r-1"}
    assert all(fields["workerId"] == worker.worker_id for _, _, fields in ours.lines)
    assert not [one for one in others.lines if "boom" in one[1]]
    assert ours.lines[-1][1] == "Worker stopped"


def test_the_default_logger_prints_one_json_object_per_line_from_its_level_up() -> None:
    out = io.StringIO()
    logger = DefaultLogger(LogLevel.WARN, out)
    logger.debug("a")
    logger.info("b")
    logger.warn("c", taskId="t")
    logger.error("d", reason=ValueError("x"))

    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["level"], line["message"]) for line in lines] == [("warn", "c"), ("error", "d")]
    assert lines[0]["taskId"] == "t"
    assert lines[1]["reason"] == "x"
    assert lines[0]["timestamp"]
