"""A producer that is killed: puts jobs under run ids of their own into the queue, and says so.

    python -m tests.chaos.natq_producer one|many COUNT

``one`` waits for each acknowledgement before the next job, ``many`` keeps a window under way.
Run ids are numbers, so the same command again enqueues the same jobs.
"""

from __future__ import annotations

import asyncio
import os
import sys

import penstock
from penstock.protocols.natq.client import Job


async def main(manner: str, count: int) -> None:
    async with penstock.connect(os.environ["NATS_URL"]) as client:
        print("connected", flush=True)
        if manner == "many":
            jobs = (Job("plain", {"n": n}, f"r{n}") for n in range(count))
            report = await client.natq.enqueue_many(jobs)
            print(f"stored {report.stored - report.duplicates} known {report.duplicates}")
            return
        for n in range(count):
            run = await client.enqueue("plain", n=n, run_id=f"r{n}")
            print("known" if run.duplicate else "stored", run.run_id, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
