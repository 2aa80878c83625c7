"""The upstream tester's seven checks, with its inputs, its polling and its time limits."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.conformance.natq.registry import Failed, check, expect
from tests.conformance.natq.stage import Job, Stage

__all__: list[str] = []

_POLL_SECONDS = 0.1
_LIMIT_SECONDS = 30.0


async def polled(stage: Stage, job: Job, final: int | None) -> tuple[list[Any], Any]:
    """Look at the key every 100 ms until ``final`` (``None``: until it has been and gone)."""
    seen: list[Any] = []
    deadline = time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < deadline:
        record = await stage.record(job.key)
        if record is not None and record["status"] == final:
            return seen, record
        if record is None and final is None and seen:
            return seen, None
        if record is not None:
            seen.append(record["status"])
        await asyncio.sleep(_POLL_SECONDS)
    wanted = final or "gone"
    raise Failed(f"{job.key} not {wanted} after {_LIMIT_SECONDS:g} s; seen {sorted(set(seen))}")


@check("upstream.add", needs=("e2e-add",))
async def add(stage: Stage) -> None:
    """5 + 3 is 8, with status 200."""
    reply = await stage.request("e2e-add", {"a": 5, "b": 3})
    expect(reply.status == "200", f"status {reply.status!r}")
    expect(isinstance(reply.data, dict) and reply.data.get("sum") == 8, f"body {reply.body!r}")


@check("upstream.echo", needs=("e2e-echo",))
async def echo(stage: Stage) -> None:
    """An object comes back with the same members."""
    said = {"message": "hello world", "nested": {"foo": "bar"}}
    reply = await stage.request("e2e-echo", said)
    expect(reply.status == "200", f"status {reply.status!r}")
    same = isinstance(reply.data, dict) and {name: reply.data.get(name) for name in said} == said
    expect(same, f"body {reply.body!r}")


@check("upstream.client_error", needs=("e2e-client-error",))
async def client_error(stage: Stage) -> None:
    """A client error arrives as status 400 with its exact text."""
    reply = await stage.request("e2e-client-error", {"shouldFail": True})
    expect(reply.status == "400", f"status {reply.status!r}")
    expect(reply.error == "Client requested failure", f"error {reply.error!r}")


@check("upstream.delay", needs=("e2e-delay",))
async def delay(stage: Stage) -> None:
    """A job of 500 ms is seen at 100 and then at 200."""
    job = await stage.enqueue(
        "e2e-delay", {"runId": f"delay-test-{time.time_ns()}", "delayMs": 500}
    )
    seen, record = await polled(stage, job, 200)
    expect(100 in seen, "status 100 was never seen")
    expect(record.get("data", {}).get("delayed") is True, f"record {record}")


@check("upstream.retry", needs=("e2e-retry",))
async def retry(stage: Stage) -> None:
    """A job that fails twice stays at 100 until its third attempt succeeds."""
    job = await stage.enqueue(
        "e2e-retry", {"runId": f"retry-test-{time.time_ns()}", "failCount": 2}
    )
    seen, record = await polled(stage, job, 200)
    expect(set(seen) <= {100}, f"seen before success: {seen}")
    attempts = record.get("data", {}).get("attempts")
    expect(isinstance(attempts, int) and attempts >= 2, f"attempts {attempts!r}")


@check("upstream.async_client_error", needs=("e2e-async-client-error",))
async def async_client_error(stage: Stage) -> None:
    """An async client error is recorded as 400 with its exact text."""
    job = await stage.enqueue("e2e-async-client-error")
    _, record = await polled(stage, job, 400)
    expect(record.get("error") == "Async client error", f"record {record}")


@check("upstream.drop_result", needs=("e2e-drop-result",))
async def drop_result(stage: Stage) -> None:
    """A result to be dropped is seen at 100 and then the key is gone."""
    job = await stage.enqueue("e2e-drop-result", {"dropResultOnSuccess": True})
    seen, _ = await polled(stage, job, None)
    expect(100 in seen, f"status 100 was never seen: {seen}")
