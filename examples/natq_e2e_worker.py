"""The seven tasks that the natq end-to-end tester asks for.

    NATS_URL=nats://localhost:4222 python -m examples.natq_e2e_worker

Written with the names of the upstream SDK, through our face for them. ``e2e-retry`` counts
by the delivery, not in memory, so that any number of workers agree.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from penstock.protocols.natq import (
    NatqWorker,
    StatusCode,
    TaskContext,
    TaskRunInput,
    TaskRunOutput,
    TaskType,
)


def answer(
    ctx: TaskContext, data: Any = None, *, status: int = StatusCode.OK, error: str | None = None
) -> TaskRunOutput:
    return TaskRunOutput(ctx.run_id, ctx.task.id, status, data, error)


async def add(given: TaskRunInput, ctx: TaskContext) -> TaskRunOutput:
    return answer(ctx, {"sum": given.data["a"] + given.data["b"]})


async def echo(given: TaskRunInput, ctx: TaskContext) -> TaskRunOutput:
    return answer(ctx, given.data)


async def client_error(_given: TaskRunInput, ctx: TaskContext) -> TaskRunOutput:
    return answer(ctx, status=StatusCode.BAD_REQUEST, error="Client requested failure")


async def delay(given: TaskRunInput, ctx: TaskContext) -> TaskRunOutput:
    await asyncio.sleep(given.data.get("delayMs", 1000) / 1000)
    return answer(ctx, {"delayed": True})


async def retry(given: TaskRunInput, ctx: TaskContext) -> TaskRunOutput:
    fails = given.data.get("failCount", 1)
    attempt = ctx.delivery
    if attempt <= fails:
        error = f"Intentional failure {attempt}/{fails}"
        return answer(ctx, status=StatusCode.INTERNAL_ERROR, error=error)
    return answer(ctx, {"attempts": attempt})


async def async_client_error(_given: TaskRunInput, ctx: TaskContext) -> TaskRunOutput:
    return answer(ctx, status=StatusCode.BAD_REQUEST, error="Async client error")


async def drop_result(_given: TaskRunInput, ctx: TaskContext) -> TaskRunOutput:
    await asyncio.sleep(0.5)
    return answer(ctx, {"dropped": True})


TASKS = (
    ("e2e-add", TaskType.SYNC, add),
    ("e2e-echo", TaskType.SYNC, echo),
    ("e2e-client-error", TaskType.SYNC, client_error),
    ("e2e-delay", TaskType.ASYNC, delay),
    ("e2e-retry", TaskType.ASYNC, retry),
    ("e2e-async-client-error", TaskType.ASYNC, async_client_error),
    ("e2e-drop-result", TaskType.ASYNC, drop_result),
)


async def main() -> None:
    worker = NatqWorker()
    for task_id, kind, handler in TASKS:
        worker.register_task(task_id, kind, handler)
    await worker.start(os.environ.get("NATS_URL", "nats://localhost:4222"))
    await worker.wait()  # until SIGINT or SIGTERM


if __name__ == "__main__":
    asyncio.run(main())
