"""Penstock on OmniQ: publishing, leasing, consuming, waiting; and what a call costs Redis."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.kit.run import Meter, Run
from bench.kit.venvs import python_for
from penstock.broker.redis_sync import SyncRedisLink
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.context import JobContext
from penstock.protocols.omniq.sync_client import SyncOmniqClient
from penstock.protocols.omniq.wire import ReservedJob

__all__ = ["QUEUE"]

QUEUE = "bench"
_SLICE = 10_000


def fill(run: Run) -> None:
    """Jobs for whoever leases or consumes them; ``waiting`` more of them than needed."""
    with SyncOmniqClient(run.url) as client:
        _fill(client, run.count + int(run.options.get("waiting", 0)))
    link = SyncRedisLink(run.url)  # it may tidy up its file after so much: not on our time
    while b"aof_rewrite_in_progress:1" in link.execute("INFO", "persistence"):  # type: ignore[operator]
        time.sleep(0.05)


def publish_one_by_one(run: Run) -> None:
    """Each answered before the next, from a plain program."""
    with SyncOmniqClient(run.url) as client:
        client.publish(QUEUE, {"n": -1})
        with run.measure():
            for n in range(run.count):
                client.publish(QUEUE, {"n": n})


async def publish_at_once(run: Run) -> None:
    """Many calls in the air on one event loop."""
    async with OmniqClient(run.url) as client:
        await client.publish(QUEUE, {"n": -1})
        numbers = iter(range(run.count))

        async def publish() -> None:
            for n in numbers:
                await client.publish(QUEUE, {"n": n})

        with run.measure():
            await asyncio.gather(*(publish() for _ in range(run.options["at_once"])))


def publish_bulk(run: Run) -> None:
    """The bulk call, from a plain program."""
    with SyncOmniqClient(run.url) as client:
        client.publish(QUEUE, {"n": -1})
        with run.measure():
            client.publish_many(QUEUE, [{"n": n} for n in range(run.count)])


def lease_one_by_one(run: Run) -> None:
    """Reserve and acknowledge, each answered before the next."""
    with SyncOmniqClient(run.url) as client:
        _lease_and_ack(client, 50)
        _fill(client, 50)
        link = SyncRedisLink(run.url)
        link.execute("CONFIG", "RESETSTAT")
        with run.measure() as meter:
            _lease_and_ack(client, run.count)
        meter.more = {"steps": _steps(link) / run.count}


async def consume(run: Run) -> None:
    """From the first reserve until the last job is acknowledged."""
    done = asyncio.Event()
    left = run.count

    async def noop(_ctx: JobContext) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async with OmniqClient(run.url) as client:
        consumer = client.consumer(QUEUE, noop, concurrency=run.options["concurrency"])
        with run.measure():
            running = asyncio.create_task(consumer.run())
            await done.wait()
            while (await client.monitor.counts(QUEUE)).active:
                await asyncio.sleep(0.002)
        consumer.stop()
        await running


async def wait_idle(run: Run) -> None:
    """Nothing to do for a while, then one job now and then: what does either cost."""
    started: dict[str, float] = {}
    came = asyncio.Event()

    async def noop(ctx: JobContext) -> None:
        started[ctx.job_id] = time.monotonic()
        came.set()

    async with OmniqClient(run.url) as client, OmniqClient(run.url) as publisher:
        consumer = client.consumer(QUEUE, noop)
        running = asyncio.create_task(consumer.run())
        await _one(publisher, came)
        seconds = run.options["idle_s"]
        with run.measure(count=seconds) as meter, calls_of(run.url, meter):
            await asyncio.sleep(seconds)
        if run.options.get("foreign"):
            published = await asyncio.to_thread(_publish_as_pypi, run)
        else:
            published = {}
            for _ in range(run.count):
                await asyncio.sleep(random.uniform(0.05, 0.15))
                at = time.monotonic()
                published[await publisher.publish(QUEUE, {})] = at
        while published.keys() - started.keys():
            came.clear()
            await asyncio.wait_for(came.wait(), 5)
        meter.latencies_s = [started[job_id] - at for job_id, at in published.items()]
        consumer.stop()
        await running


def cost(run: Run) -> None:
    """Server time of each call, as a multiple of a script that does nothing."""
    with SyncOmniqClient(run.url) as client:
        _fill(client, 2_000)
        spent = Spending(run.url)

        def lease() -> Any:
            return client.reserve(QUEUE)

        with run.measure() as meter:
            count = run.count
            nothing = spent.noop(5 * count)
            publish = spent.of(lambda: client.publish(QUEUE, {"n": 1}), count)
            held: list[Any] = []
            reserve = spent.of(lambda: held.append(lease()), count)
            beat = spent.of(_each(held, client.heartbeat), count)
            ack = spent.of(_each(held, client.ack_success), count)
            client.publish_many(QUEUE, [{}] * count)
            bulk = spent.of(lambda: client.publish_many(QUEUE, [{}] * 500), 20) / 500
        meter.more = {
            "noop_us": nothing,
            "publish_x": publish / nothing,
            "bulk_x": bulk / nothing,
            "reserve_x": reserve / nothing,
            "heartbeat_x": beat / nothing,
            "ack_x": ack / nothing,
        }


class Spending:
    """What calls cost inside Redis, by its own books."""

    def __init__(self, url: str) -> None:
        self._link = SyncRedisLink(url)

    def of(self, act: Any, times: int) -> float:
        """Microseconds of one ``act``."""
        for _ in range(20):
            act()
        self._link.execute("CONFIG", "RESETSTAT")
        for _ in range(times):
            act()
        return self._used() / times

    def noop(self, times: int) -> float:
        sha = self._link.execute("SCRIPT", "LOAD", "return 1")
        return self.of(lambda: self._link.execute("EVALSHA", sha, "1", "{x}:meta"), times)

    def _used(self) -> float:
        return scripts_used(self._link)[1]


def scripts_used(link: SyncRedisLink) -> tuple[int, float]:
    """How many script calls there were since the last reset, and their microseconds."""
    told: Any = link.execute("INFO", "commandstats")
    calls, spent = 0, 0.0
    for line in told.decode().splitlines():
        if line.startswith(("cmdstat_evalsha:", "cmdstat_eval:")):
            values = dict(part.split("=") for part in line.partition(":")[2].split(","))
            calls += int(values["calls"])
            spent += float(values["usec"])
    return calls, spent


@contextmanager
def calls_of(url: str, meter: Meter) -> Iterator[None]:
    """Script calls that Redis gets in a second meanwhile."""
    link = SyncRedisLink(url)
    link.execute("CONFIG", "RESETSTAT")
    began = time.monotonic()
    yield
    meter.more = {"evalsha_s": scripts_used(link)[0] / (time.monotonic() - began)}
    link.close()


def _steps(link: SyncRedisLink) -> int:
    """Commands that Redis carried out, those inside scripts as well."""
    told: Any = link.execute("INFO", "commandstats")
    return sum(
        int(line.partition("calls=")[2].partition(",")[0])
        for line in told.decode().splitlines()
        if line.startswith("cmdstat_")
    )


def _each(held: list[Any], call: Any) -> Any:
    at = iter(list(held) * 2)
    return lambda: _on(next(at), call)


def _on(job: Any, call: Any) -> None:
    assert isinstance(job, ReservedJob)
    call(QUEUE, job.job_id, job.lease_token)


def _fill(client: SyncOmniqClient, count: int) -> None:
    for first in range(0, count, _SLICE):
        client.publish_many(QUEUE, [{"n": n} for n in range(first, min(first + _SLICE, count))])


def _lease_and_ack(client: SyncOmniqClient, count: int) -> None:
    for _ in range(count):
        job = client.reserve(QUEUE)
        assert isinstance(job, ReservedJob)
        client.ack_success(QUEUE, job.job_id, job.lease_token)


async def _one(publisher: OmniqClient, came: asyncio.Event) -> None:
    """The consumer is up once it has handled a job."""
    await publisher.publish(QUEUE, {})
    await came.wait()


def _publish_as_pypi(run: Run) -> dict[str, float]:
    """The same jobs now and then, by the other SDK in a process of its own."""
    told = {"url": run.url, "count": run.count, "queue": QUEUE}
    ran = subprocess.run(
        [python_for(tuple(run.options["foreign"])), "-m", "bench.peers.omniq_pypi"],
        input=json.dumps(told), capture_output=True, text=True, check=True, timeout=120,
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    sys.stderr.write(ran.stderr)
    published: dict[str, float] = json.loads(ran.stdout)
    return published
