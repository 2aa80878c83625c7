"""A producer of Open Job Spec jobs that is killed: one unique job, or one atomic batch.

python -m tests.chaos.ojs_producer unique|batch
"""

from __future__ import annotations

import asyncio
import os
import sys

from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.protocols.ojs.client import OjsClient

BATCH = 20


async def main(manner: str) -> None:
    link = await Link.open(NatsOptions.from_url(os.environ["NATS_URL"]))
    async with await OjsClient.open(link) as client:
        if manner == "unique":
            once = {"keys": ["type", "args"], "on_conflict": "ignore"}
            job = await client.enqueue("plain", {"n": 1}, unique=once)
            print("known" if job.deduplicated else "stored", job.id)
        else:
            jobs = await client.enqueue_many(
                [("plain", {"n": n}) for n in range(BATCH)], atomic=True
            )
            print("stored", len(jobs))
    await link.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
