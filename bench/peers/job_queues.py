"""What a user would pick instead: arq, SAQ, Dramatiq, Celery on Redis, taskiq on NATS.

Each drains no-op jobs with one worker process as its documentation sets it up; the standard
library and the peer itself are all that is imported, each in an environment of its own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.kit.run import Run

ROOT = Path(__file__).resolve().parents[2]
DONE = "bench:done"


def arq(run: Run) -> None:
    """arq: `Worker` in this process, `max_jobs` as the scenario says."""
    asyncio.run(_arq(run))


async def _arq(run: Run) -> None:
    from arq import create_pool
    from arq.connections import RedisSettings
    from arq.worker import Worker, func

    settings = RedisSettings.from_dsn(run.url)
    pool = await create_pool(settings)
    for start in range(0, run.count, 500):
        some = range(start, min(start + 500, run.count))
        await asyncio.gather(*(pool.enqueue_job("noop", n) for n in some))
    left = run.count
    done = asyncio.Event()

    async def noop(_ctx: Any, n: int) -> int:
        nonlocal left
        left -= 1
        if not left:
            done.set()
        return n

    worker = Worker(
        [func(noop, name="noop")],
        redis_settings=settings,
        max_jobs=run.options["concurrency"],
        poll_delay=0.01,
        handle_signals=False,
    )
    with run.measure():
        working = asyncio.create_task(worker.async_run())
        await done.wait()
        while await pool.zcard("arq:queue"):
            await asyncio.sleep(0.002)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


def saq(run: Run) -> None:
    """SAQ: `Worker` in this process."""
    asyncio.run(_saq(run))


async def _saq(run: Run) -> None:
    from saq import Queue, Worker

    queue = Queue.from_url(run.url)
    await queue.connect()
    for start in range(0, run.count, 500):
        some = range(start, min(start + 500, run.count))
        await asyncio.gather(*(queue.enqueue("noop", n=n) for n in some))
    left = run.count
    done = asyncio.Event()

    async def noop(_ctx: Any, *, n: int) -> int:
        nonlocal left
        left -= 1
        if not left:
            done.set()
        return n

    worker = Worker(queue, functions=[("noop", noop)], concurrency=run.options["concurrency"])
    with run.measure():
        working = asyncio.create_task(worker.start())
        await done.wait()
        while await queue.count("incomplete"):
            await asyncio.sleep(0.002)
    await worker.stop()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


def dramatiq(run: Run) -> None:
    """Dramatiq: its command line, one process with eight threads as by default."""
    from bench.peers.dramatiq_app import noop

    for n in range(run.count):
        noop.send(n)
    _command(run, ["-m", "dramatiq", "bench.peers.dramatiq_app", "--processes", "1"])


def celery(run: Run) -> None:
    """Celery: its command line, one prefork process, acknowledged late as our jobs are."""
    from bench.peers.celery_app import noop

    for n in range(run.count):
        noop.delay(n)
    arguments = ["-m", "celery", "-A", "bench.peers.celery_app", "worker", "-c", "1"]
    _command(run, [*arguments, "--without-gossip", "--without-mingle", "--loglevel", "error"])


def taskiq(run: Run) -> None:
    """taskiq on JetStream: its command line, one worker process."""
    from bench.peers.taskiq_app import broker, noop

    async def load() -> None:
        await broker.startup()
        for start in range(0, run.count, 500):
            some = range(start, min(start + 500, run.count))
            await asyncio.gather(*(noop.kiq(n) for n in some))
        await broker.shutdown()

    asyncio.run(load())
    arguments = ["-m", "taskiq", "worker", "bench.peers.taskiq_app:broker", "--workers", "1"]
    _command(run, [*arguments, "--max-async-tasks", str(run.options["concurrency"])])


def _command(run: Run, arguments: list[str]) -> None:
    """Run a worker's command until it has counted every job in the counting file."""
    counter = Path(os.environ["BENCH_COUNT"])
    counter.write_bytes(b"")
    worker = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not counter.stat().st_size:  # starting up is not what is compared
            time.sleep(0.002)
        first = counter.stat().st_size
        pids = [worker.pid, *_children(worker.pid)]
        with run.measure(run.count - first, pids=pids):
            while counter.stat().st_size < run.count:
                time.sleep(0.002)
    finally:
        os.killpg(worker.pid, 9)
        worker.wait()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *_children(int(child))]
    return found


def counted() -> None:
    """Called by a handler: one more is done. An append of one byte, the same for all."""
    os.write(_counter(), b".")


_fd: list[int] = []


def _counter() -> int:
    if not _fd:
        _fd.append(os.open(os.environ["BENCH_COUNT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT))
    return _fd[0]


def address() -> str:
    return os.environ["BENCH_URL"]


def redis_socket(url: str) -> str:
    """The address in the form that every Redis library takes."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port}/0"
