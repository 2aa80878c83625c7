"""Our consumer as a program, telling what it does in the same lines as `peer_main`.

``ours_main.py URL QUEUE`` with ``--kind asyncio|threads``, ``--concurrency``, ``--no-drain``;
a line on standard input calls ``stop()``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from typing import Any

from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.context import JobContext
from penstock.protocols.omniq.sync_client import SyncOmniqClient


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def tell(kind: str, ctx: JobContext, **more: Any) -> None:
    about = {"id": ctx.job_id, "gid": ctx.gid, "attempt": ctx.attempt}
    say(kind=kind, at=time.monotonic(), **about, **more)


async def in_loop(ctx: JobContext) -> None:
    """Payloads say what to do: ``sleep`` seconds, ``fail`` while attempt <= that."""
    tell("started", ctx, payload=ctx.payload)
    try:
        await asyncio.sleep(ctx.payload.get("sleep", 0))
    except asyncio.CancelledError:
        tell("lost", ctx, knows=ctx.lost)
        raise
    finish(ctx)


def in_thread(ctx: JobContext) -> None:
    tell("started", ctx, payload=ctx.payload)
    until = time.monotonic() + ctx.payload.get("sleep", 0)
    while time.monotonic() < until:
        if ctx.lost:
            tell("lost", ctx, knows=True)
            ctx.raise_if_lost()
        time.sleep(0.01)
    finish(ctx)


def finish(ctx: JobContext) -> None:
    if ctx.attempt <= ctx.payload.get("fail", 0):
        tell("failing", ctx)
        raise ValueError("told to fail")
    tell("finishing", ctx)


def stop_when_told(consumer: Any) -> None:
    def listen() -> None:
        if sys.stdin.readline():
            consumer.stop()

    threading.Thread(target=listen, daemon=True).start()


async def consume_in_loop(given: argparse.Namespace) -> None:
    async with OmniqClient(given.url, compat=given.compat) as client:
        how = {"concurrency": given.concurrency, "drain": not given.no_drain}
        consumer = client.consumer(given.queue, in_loop, **how)  # type: ignore[arg-type]
        stop_when_told(consumer)
        say(kind="ready")
        await consumer.run()


def consume_in_threads(given: argparse.Namespace) -> None:
    with SyncOmniqClient(given.url, compat=given.compat) as client:
        how = {"concurrency": given.concurrency, "drain": not given.no_drain}
        consumer = client.consumer(given.queue, in_thread, **how)  # type: ignore[arg-type]
        stop_when_told(consumer)
        say(kind="ready")
        consumer.run()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("queue")
    parser.add_argument("--kind", default="asyncio")
    parser.add_argument("--compat", default="v1")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--no-drain", action="store_true")
    given = parser.parse_args()
    if given.kind == "asyncio":
        asyncio.run(consume_in_loop(given))
    else:
        consume_in_threads(given)
    say(kind="ended")


if __name__ == "__main__":
    main()
