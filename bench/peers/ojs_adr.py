"""The scheme of ADR-013 as its text describes it, re-created on the stock client.

One after the other: enqueue is 3 round trips (is the id known, store the state, publish), fetch 8
(message; state; is the queue paused; write the claim; write the lease; list the jobs for
priorities; read the queue's counters; write them), ack 7 (state; write it; acknowledge; drop the
lease; counters; write them; is there a workflow). Promoter and reaper list the keys of the bucket
once a second and read what they find.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from typing import Any

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import BadRequestError, KeyNotFoundError, NoKeysError
from nats.js.kv import KeyValue

from bench.kit.run import Run

_EVERY_S = 1.0


class Scheme:
    def __init__(self, client: Client, js: JetStreamContext, state: KeyValue) -> None:
        self.client, self.js, self.state = client, js, state
        self.pulls: Any = None

    async def enqueue(self) -> str:
        job_id = str(uuid.uuid4())
        with contextlib.suppress(KeyNotFoundError):
            await self.state.get(f"jobs.{job_id}")
        job = {"id": job_id, "type": "noop", "args": [1], "state": "available", "attempt": 0}
        await self.state.put(f"jobs.{job_id}", json.dumps(job).encode())
        await self.js.publish("adr.queue.bench.jobs", job_id.encode())
        return job_id

    async def fetch(self) -> tuple[dict[str, Any], Any]:
        [message] = await self.pulls.fetch(1, timeout=5)
        job_id = message.data.decode()
        job = json.loads((await self.state.get(f"jobs.{job_id}")).value or b"{}")
        await self._maybe("queues.bench")
        job |= {"state": "active", "attempt": job["attempt"] + 1}
        await self.state.put(f"jobs.{job_id}", json.dumps(job).encode())
        await self.state.put(f"leases.{job_id}", b"{}")
        await self._maybe("priorities.bench")
        await self._count("active", 1)
        return job, message

    async def ack(self, job: dict[str, Any], message: Any) -> None:
        await self.state.get(f"jobs.{job['id']}")
        done = {**job, "state": "completed"}
        await self.state.put(f"jobs.{job['id']}", json.dumps(done).encode())
        await message.ack_sync()
        await self.state.delete(f"leases.{job['id']}")
        await self._count("completed", 1)
        await self._maybe(f"workflows.{job['id']}")

    async def _count(self, name: str, by: int) -> None:
        kept = json.loads(await self._maybe("counters.bench") or b"{}")
        kept[name] = kept.get(name, 0) + by
        await self.state.put("counters.bench", json.dumps(kept).encode())

    async def _maybe(self, key: str) -> bytes:
        try:
            return (await self.state.get(key)).value or b""
        except KeyNotFoundError:
            return b""

    async def look_around(self) -> None:
        """Promoter and reaper: every key, then what lies there."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                keys = await self.state.keys(filters=["jobs.>"])
            except NoKeysError:
                continue
            for key in keys:
                await self._maybe(key)


async def _open(run: Run) -> Scheme:
    client = await nats.connect(run.url)
    js = client.jetstream(timeout=30)
    with contextlib.suppress(BadRequestError):
        await js.add_stream(name="ADR", subjects=["adr.queue.*.jobs"], retention="workqueue")
    state = await js.create_key_value(bucket="adr-state", history=1)
    scheme = Scheme(client, js, state)
    scheme.pulls = await js.pull_subscribe("adr.queue.bench.jobs", durable="bench", stream="ADR")
    return scheme


async def load(run: Run) -> None:
    """Jobs that are over, as many as the scenario stores."""
    scheme = await _open(run)
    stored = run.options["stored"]
    for start in range(0, stored, 500):
        await asyncio.gather(
            *(
                scheme.state.put(f"jobs.old{n}", b'{"state":"completed","attempt":1}')
                for n in range(start, min(start + 500, stored))
            )
        )
    await scheme.client.close()


async def life(run: Run) -> None:
    """Whole lives, as many at once as the scenario says."""
    scheme = await _open(run)
    looking = asyncio.create_task(scheme.look_around())
    left = iter(range(run.count))

    async def live() -> None:
        for _ in left:
            await scheme.enqueue()
            await scheme.ack(*await scheme.fetch())

    with run.measure():
        await asyncio.gather(*(live() for _ in range(run.options["at_once"])))
    looking.cancel()
    await scheme.client.close()
