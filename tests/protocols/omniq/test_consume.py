"""``consume``: the helper of the contract, for asyncio and for threads, and how it stops."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis as redis_py

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.core.context import LeaseLost
from penstock.core.errors import ConfigError
from penstock.core.outcome import Reject, Snooze
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.consumer import Handler
from penstock.protocols.omniq.context import JobContext
from penstock.protocols.omniq.sync_client import SyncOmniqClient
from tests.protocols.omniq.invariants import check_invariants


@pytest.fixture
async def client(redis_server: EmbeddedRedis) -> AsyncIterator[OmniqClient]:
    async with OmniqClient(redis_server.url) as made:
        yield made


@asynccontextmanager
async def consuming(
    client: OmniqClient, queue: str, handler: Handler, **how: Any
) -> AsyncIterator[Any]:
    """A consumer that runs meanwhile."""
    consumer = client.consumer(queue, handler, **how)
    running = asyncio.create_task(consumer.run())
    try:
        yield consumer
    finally:
        consumer.stop()
        async with asyncio.timeout(30):
            await running


async def until(holds: Callable[[], Any], within_s: float = 20.0) -> None:
    """Wait for a condition, sync or async, with a deadline."""
    async with asyncio.timeout(within_s):
        while True:
            answer = holds()
            if (await answer) if asyncio.iscoroutine(answer) else answer:
                return
            await asyncio.sleep(0.01)


def state_of(client: OmniqClient, queue: str, job_id: str) -> Callable[[], Any]:
    async def state() -> str:
        job = await client.monitor.get_job(queue, job_id)
        assert job is not None
        return job.state

    return state


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_every_job_is_handled_once_and_acknowledged(
    client: OmniqClient, queue: str, raw: Any, concurrency: int, kind: str
) -> None:
    seen: list[int] = []

    async def in_loop(ctx: JobContext) -> None:
        await asyncio.sleep(0)
        seen.append(ctx.payload["n"])

    def in_thread(ctx: JobContext) -> None:
        seen.append(ctx.payload["n"])

    await client.publish_many(queue, [{"n": n} for n in range(200)])
    handler = in_loop if kind == "async" else in_thread
    async with consuming(client, queue, handler, concurrency=concurrency):
        await until(lambda: len(seen) == 200)

    assert sorted(seen) == list(range(200))
    if concurrency == 1:
        assert seen == sorted(seen)
    counts = await client.monitor.counts(queue)
    assert (counts.completed, counts.active, counts.wait) == (100, 0, 0)
    check_invariants(raw, queue)


async def test_the_context_has_what_the_contract_names(client: OmniqClient, queue: str) -> None:
    got: list[JobContext] = []

    async def handler(ctx: JobContext) -> None:
        got.append(ctx)

    job_id = await client.publish(queue, {"ä": [1]}, gid="g", timeout_ms=5000, max_attempts=7)
    async with consuming(client, queue, handler):
        await until(lambda: got)

    (ctx,) = got
    assert (ctx.queue, ctx.job_id, ctx.gid) == (queue, job_id, "g")
    assert (ctx.payload_raw, ctx.payload) == ('{"ä":[1]}', {"ä": [1]})
    assert (ctx.attempt, ctx.max_attempts, ctx.timeout_ms) == (1, 7, 5000)
    assert len(ctx.lease_token) > 0
    assert ctx.lock_until_ms > client.now_ms() - 60_000
    assert not ctx.lost


async def test_what_a_handler_raises_is_told_as_all_sdks_tell_it(
    client: OmniqClient, queue: str
) -> None:
    attempts: list[int] = []

    async def handler(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        raise ValueError("no such image")

    await client.publish(queue, {}, job_id="x", max_attempts=2, backoff_ms=1)
    async with consuming(client, queue, handler):
        await until(lambda: len(attempts) == 2)

    job = await client.monitor.get_job(queue, "x")
    assert job is not None
    assert (job.state, job.last_error) == ("failed", "ValueError: no such image")


async def test_a_handler_may_reject_and_snooze(client: OmniqClient, queue: str) -> None:
    attempts: list[tuple[int, Any]] = []

    async def handler(ctx: JobContext) -> None:
        attempts.append((ctx.attempt, ctx.saved))
        if ctx.saved is None:
            raise Snooze(0.01, checkpoint="half")
        raise Reject("never")

    await client.publish(queue, {}, job_id="x", max_attempts=9)
    async with consuming(client, queue, handler):
        await until(lambda: len(attempts) == 2)

    assert attempts == [(1, None), (1, "half")]
    assert await state_of(client, queue, "x")() == "failed"


async def test_a_payload_that_is_not_json_comes_as_text(
    client: OmniqClient, queue: str, raw: Any
) -> None:
    got: list[Any] = []

    async def handler(ctx: JobContext) -> None:
        got.append((ctx.payload, ctx.payload_raw))

    await client.publish(queue, {}, job_id="x")
    raw.hset(f"{{{queue}}}:job:x", "payload", "plain text")
    async with consuming(client, queue, handler):
        await until(lambda: got)

    assert got == [("plain text", "plain text")]


async def test_an_async_handler_may_use_the_client_through_its_context(
    client: OmniqClient, queue: str
) -> None:
    left: list[int] = []

    async def handler(ctx: JobContext) -> None:
        if ctx.payload:
            await ctx.exec.childs_init(queue, 1)
            await ctx.exec.publish(queue, {}, job_id="child")
            assert not await ctx.exec.is_paused(queue)
        else:
            left.append(await ctx.exec.child_ack(queue))

    await client.publish(queue, {"parent": True})
    async with consuming(client, queue, handler):
        await until(lambda: left == [0])


@pytest.mark.parametrize("door", ["link", "redis-py"])
def test_the_client_for_threads_consumes_with_the_same_surface(
    redis_server: EmbeddedRedis, queue: str, raw: Any, door: str
) -> None:
    theirs = redis_py.Redis.from_url(redis_server.url)
    made = SyncOmniqClient(redis_server.url) if door == "link" else SyncOmniqClient(redis=theirs)
    with made as client:
        client.publish_many(queue, [{"n": n} for n in range(50)])
        done: list[int] = []

        def handler(ctx: JobContext) -> None:
            if ctx.payload["n"] == 0:
                ctx.exec.publish(queue, {"n": 50})
            done.append(ctx.payload["n"])
            if len(done) == 51:
                consumer.stop()

        consumer = client.consumer(queue, handler, concurrency=4)
        thread = threading.Thread(target=consumer.run)
        thread.start()
        thread.join(60)

        assert not thread.is_alive()
        assert sorted(done) == list(range(51))
        assert client.monitor.counts(queue).active == 0
    check_invariants(raw, queue)
    theirs.close()


async def test_a_handler_longer_than_its_lease_keeps_it(client: OmniqClient, queue: str) -> None:
    runs: list[int] = []

    async def handler(ctx: JobContext) -> None:
        runs.append(ctx.attempt)
        await asyncio.sleep(2.0)

    await client.publish(queue, {}, job_id="x", timeout_ms=600)
    async with consuming(client, queue, handler, reap_interval_s=0.1):
        await until(lambda: runs)

    assert runs == [1]
    assert await state_of(client, queue, "x")() == "completed"


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_who_lost_the_lease_is_told_and_writes_nothing(
    client: OmniqClient, queue: str, kind: str
) -> None:
    entered, left = threading.Event(), threading.Event()
    told: list[str] = []

    async def in_loop(ctx: JobContext) -> None:
        entered.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.append(f"cancelled, lost {ctx.lost}")
            left.set()
            raise

    def in_thread(ctx: JobContext) -> None:
        entered.set()
        try:
            while not left.wait(0.02):
                ctx.raise_if_lost()
        except LeaseLost:
            told.append(f"raised, lost {ctx.lost}")
            left.set()
            raise

    await client.publish(queue, {}, job_id="x", timeout_ms=900, backoff_ms=600_000)
    handler = in_loop if kind == "async" else in_thread
    async with consuming(client, queue, handler):
        await until(entered.is_set)
        await client.reap_expired(queue, now_ms_override=client.now_ms() + 60_000)
        await until(left.is_set)

    assert told == ["cancelled, lost True" if kind == "async" else "raised, lost True"]
    assert await state_of(client, queue, "x")() == "delayed"  # as the reaper left it


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_without_drain_the_job_is_back_at_once_and_keeps_its_attempt(
    client: OmniqClient, queue: str, raw: Any, kind: str
) -> None:
    entered, release = threading.Event(), threading.Event()

    async def in_loop(_ctx: JobContext) -> None:
        entered.set()
        await asyncio.sleep(60)

    def in_thread(_ctx: JobContext) -> None:
        entered.set()
        release.wait(60)

    await client.publish(queue, {}, job_id="x", gid="g")
    handler = in_loop if kind == "async" else in_thread
    async with consuming(client, queue, handler, drain=False):
        await until(entered.is_set)

    check_invariants(raw, queue)
    job = await client.reserve(queue)
    assert job is not None
    assert (job.job_id, job.attempt, job.gid) == ("x", 1, "g")  # type: ignore[union-attr]
    release.set()


async def test_with_drain_what_runs_is_finished(client: OmniqClient, queue: str) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def handler(_ctx: JobContext) -> None:
        entered.set()
        await release.wait()

    await client.publish_many(queue, [{}, {}])
    async with consuming(client, queue, handler) as consumer:
        await entered.wait()
        consumer.stop()
        release.set()

    counts = await client.monitor.counts(queue)
    assert (counts.completed, counts.wait, counts.active) == (1, 1, 0)


async def test_a_consumer_stopped_before_its_start_takes_nothing(
    client: OmniqClient, queue: str
) -> None:
    await client.publish(queue, {})
    consumer = client.consumer(queue, print)

    consumer.stop()
    async with asyncio.timeout(20):
        await consumer.run()

    assert (await client.monitor.counts(queue)).wait == 1


@pytest.mark.parametrize("name", ["concurrency", "poll_interval_s", "reap_batch"])
async def test_numbers_that_cannot_be_are_refused(
    client: OmniqClient, queue: str, name: str
) -> None:
    with pytest.raises(ConfigError, match=name):
        await client.consume(queue, print, **{name: 0})


PROGRAM = """
import sys, time
from penstock.protocols.omniq.sync_client import SyncOmniqClient
url, queue, drain = sys.argv[1:]
def handler(ctx):
    print("entered", flush=True)
    for _ in range(2000):
        if drain == "no" or not ctx.exec.is_paused(queue):
            time.sleep(0.02)
        else:
            return
with SyncOmniqClient(url) as client:
    client.consume(queue, handler, drain=drain == "yes")
print("left", flush=True)
"""


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("drain", ["yes", "no"])
async def test_signals_stop_a_program_as_drain_says(
    client: OmniqClient, redis_server: EmbeddedRedis, queue: str, number: int, drain: str
) -> None:
    await client.publish(queue, {}, job_id="x")
    program = started(redis_server.url, queue, drain)
    assert program.stdout is not None
    assert await asyncio.to_thread(program.stdout.readline) == "entered\n"

    program.send_signal(number)
    if drain == "yes":
        await client.pause(queue)  # what the handler waits for: it was not broken off
    told, _ = await asyncio.to_thread(program.communicate, timeout=60)

    assert (told, program.returncode) == ("left\n", 0)
    job = await client.monitor.get_job(queue, "x")
    assert job is not None
    assert (job.state, job.attempt) == (("completed", 1) if drain == "yes" else ("wait", 0))
