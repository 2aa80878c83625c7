"""A producer of Open Job Spec jobs that is killed: a unique job, an atomic batch, a chain.

python -m tests.chaos.ojs_producer unique|batch|chain
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.protocols.ojs.client import OjsClient
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.fields import object_of
from penstock.protocols.ojs.options import OjsOptions

BATCH = 20
CHAIN = 3


async def chain(link: Link) -> None:
    """Three jobs, one after another; the second and third are some worker's to start."""
    engine = await Engine.open(link, OjsOptions(), services=False)
    steps = [{"type": "plain", "args": [{"n": n}]} for n in range(CHAIN)]
    body = object_of(json.dumps({"type": "chain", "steps": steps}).encode())
    print("stored", await engine.workflows.create(engine.workflows.parse(body)))
    await engine.close()


async def main(manner: str) -> None:
    link = await Link.open(NatsOptions.from_url(os.environ["NATS_URL"]))
    if manner == "chain":
        await chain(link)
        return
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
